"""A Slurm cluster on one machine, from Debian's packages: munged, slurmctld, some slurmd, and with accounting also
slurmdbd and MariaDB.

All its files are in one folder, and its processes are in namespaces of their own (enter_namespaces). So all ports are
free, the machine's own Slurm is not affected, and all processes end with the test, even if the test crashes.
"""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
NEEDED = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client",
          "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core", "my_print_defaults": "mariadb-client-core", "ip": "iproute2"}
# For Open MPI, and the file as which Debian's Slurm loads PMIx.
FILES = {"/usr/lib/python3/dist-packages/mpi4py": "python3-mpi4py",
         f"/usr/lib/{os.uname().machine}-linux-gnu/pmix2/lib/libpmix.so": "libpmix-dev"}
NAME = "rig"
CONTROLLER_PORT, DATABASE_PORT, STORE_PORT, NODE_PORT = 6817, 6819, 3306, 17000
NAMESPACES = ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"]
STOPPED = 20  # how many seconds a daemon may take to end

CONFIGURATION = """
ClusterName={name}
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/state/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=10000
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
KillWait=2
MessageTimeout=60
PlugStackConfig={folder}/plugstack.conf
"""

DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser=slurm
PidFile={folder}/state/slurmdbd.pid
LogFile={folder}/state/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={store_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def missing():
    """The Debian packages that the cluster needs and that are not installed here."""
    return sorted({package for program, package in NEEDED.items() if not shutil.which(program, path=SBIN)} |
                  {package for file, package in FILES.items() if not os.path.exists(file)})


def enter_namespaces():
    """Runs this program again in namespaces of its own, and returns only in that run. All its processes end with it."""
    if os.environ.get("RCUDA_SLURM_INSIDE") == "1":
        socket.sethostname("localhost")  # slurmctld only starts on the host that slurm.conf names
        bring_up_loopback()
        leave_orphans_to_a_parent()
        return
    os.environ["RCUDA_SLURM_INSIDE"] = "1"
    os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, *sys.argv])


def leave_orphans_to_a_parent():
    """Returns in a child. This process, the first one of the namespace, waits for the orphans of Slurm's daemons."""
    child = os.fork()
    while child:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def bring_up_loopback():
    # Slurm resolves names with AI_ADDRCONFIG, which finds nothing if 127.0.0.1 is the only address.
    subprocess.run("ip link set lo up && ip address add 10.9.9.1/32 dev lo", shell=True, check=True)
    # The nodes' names are names of this machine.
    with tempfile.NamedTemporaryFile("w") as hosts:
        hosts.write("127.0.0.1 localhost n0 n1 n2 n3\n")
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        subprocess.run(["mount", "--bind", hosts.name, "/etc/hosts"], check=True)


class Cluster:
    """`nodes`: the number of slurmd. `settings`: more lines for slurm.conf. Before start(), the caller writes the
    files of the integration into `folder`."""

    def __init__(self, folder, nodes=3, cpus=8, settings="", accounting=False):
        self.folder, self.nodes, self.accounting = folder, nodes, accounting
        self.daemons = []
        self.environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"), PATH=f"{os.environ['PATH']}:{SBIN}")
        os.chmod(folder, 0o755)
        slurm = pwd.getpwnam("slurm")
        for name in ("state", "munge", *(f"spool-n{node}" for node in range(nodes))):
            os.mkdir(self.path(name), 0o755)
        for node in range(nodes):  # for PMIx; the nodes need a folder each, although they are one machine
            os.mkdir(self.path(f"tmp-n{node}"))
            os.chmod(self.path(f"tmp-n{node}"), 0o1777)
        os.chown(self.path("state"), slurm.pw_uid, slurm.pw_gid)
        self.write("slurm.conf", CONFIGURATION.format(
            name=NAME, folder=folder, controller_port=CONTROLLER_PORT) + "".join(
                f"NodeName=n{node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={NODE_PORT + node} CPUs={cpus} "
                "RealMemory=1000\n" for node in range(nodes)) +
            f"PartitionName=all Nodes=n[0-{nodes - 1}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n" +
            settings)
        self.write("plugstack.conf", "")
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    def append(self, name, text):
        with open(self.path(name), "a") as file:
            file.write(text)

    def text(self, name):
        try:
            with open(self.path(name), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def start(self):
        self.start_munged()
        if self.accounting:
            self.start_accounting()
        # Not as root, because administrators run it as SlurmUser, which has fewer rights.
        self.spawn("slurmctld", ["slurmctld", "-D"], user="slurm")
        for node in range(self.nodes):
            self.spawn(f"slurmd-n{node}", ["slurmd", "-D", "-N", f"n{node}"])
        self.await_("idle nodes", lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() ==
                    str(self.nodes))

    def spawn(self, name, command, user=None):
        identity = {} if user is None else dict(user=user, group=user, extra_groups=[])
        with open(self.path(f"{name}.out"), "w") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log,
                                       start_new_session=True, cwd=self.folder, **identity)
        self.daemons.append((name, process))
        return process

    def start_munged(self):
        key = self.path("munge/key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        os.mkdir(self.path("munge/private"), 0o700)
        private = self.path("munge/private")
        self.spawn("munged", ["munged", "--foreground", "--force", "--socket", self.path("munge/socket"),
                              "--key-file", key, "--pid-file", self.path("munge/pid"),
                              "--log-file", private + "/log", "--seed-file", private + "/seed"])
        self.await_("munged", lambda: os.path.exists(self.path("munge/socket")))

    def start_accounting(self):
        store = self.path("store")
        made = subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={store}", "--user=root",
                               "--skip-test-db"], env=self.environment, capture_output=True, text=True)
        if made.returncode != 0:
            raise SystemExit(made.stdout + made.stderr)
        self.write("store.sql", "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
                                "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';")
        self.spawn("mariadbd", ["mariadbd", "--no-defaults", "--datadir", store, "--socket", self.path("store.socket"),
                                "--pid-file", self.path("store.pid"), "--user=root", "--bind-address=127.0.0.1",
                                "--port", str(STORE_PORT), "--skip-name-resolve", "--init-file", self.path("store.sql")])
        self.await_("MariaDB", lambda: self.answers(STORE_PORT))
        self.write("slurmdbd.conf", DATABASE.format(folder=self.folder, port=DATABASE_PORT, store_port=STORE_PORT), 0o600)
        shutil.chown(self.path("slurmdbd.conf"), "slurm")
        self.append("slurm.conf", f"""
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={DATABASE_PORT}
AccountingStoragePass={self.path("munge/socket")}
""")
        self.spawn("slurmdbd", ["slurmdbd", "-D"], user="slurm")
        self.await_("slurmdbd", lambda: self.answers(DATABASE_PORT))
        self.await_("cluster in the database", lambda: self.run("sacctmgr", "-i", "add", "cluster", NAME).returncode == 0)

    def answers(self, port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def await_(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            for name, process in self.daemons:
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended with {process.returncode}:\n{self.logs()}")
            if time.monotonic() > end:
                raise SystemExit(f"no {what} within {seconds} s:\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        names = [name for name in sorted(os.listdir(self.folder)) if name.endswith((".log", ".out"))]
        return "".join(f"---- {name}\n{self.text(name)[-6000:]}" for name in names if self.text(name))

    def run(self, *command, user=None, timeout=120, **more):
        identity = {} if user is None else dict(user=user, group=user, extra_groups=[])
        more.setdefault("cwd", "/tmp")
        environment = dict(self.environment, **more.pop("environment", {}))
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout,
                              **identity, **more)

    def end_jobs(self):
        if self.run("squeue", "-h").stdout.strip():
            self.run("scancel", "--full", *self.run("squeue", "-h", "-o", "%A").stdout.split())
            self.await_("end of all jobs", lambda: not self.run("squeue", "-h").stdout.strip())

    def stop(self):
        self.end_jobs()
        for _, process in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(timeout=STOPPED)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
