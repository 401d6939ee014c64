#!/usr/bin/env python3
"""Remote GPUs for jobs of Slurm (docs/slurm.md): all forms of jobs on a real cluster on one machine, with softgpu.

    slurm_test.py --build FOLDER --programs FOLDER [unittest arguments]

If that is not possible here, exits with 77 and says why.
"""

import glob
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
import cluster as clusters  # noqa: E402
from servers import eventually, run_tests, Server  # noqa: E402

BUILD = PROGRAMS = None
SLOW = False
USER, OTHER = "daemon", "games"  # users that every Debian has
GPUS = 2  # of each of two servers
DEAD = "127.0.0.1@1"  # nothing listens there


def skip(reason):
    print(f"slurm: SKIPPED: {reason}")
    sys.exit(77)


def check_machine():
    if os.geteuid() != 0:
        skip("only root can start Slurm's daemons")
    if missing := clusters.missing():
        skip(f"not installed: {' '.join(missing)}")
    if subprocess.run(clusters.NAMESPACES + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip("no namespaces here")


class SlurmCase(unittest.TestCase):
    """A cluster of three nodes, and servers."""
    ACCOUNTING, SETTINGS = False, ""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.servers = [cls.start_server(GPUS, 0), cls.start_server(GPUS, 1), cls.start_server(3, 2)]
        cls.frail = cls.start_server(1, 3)
        cls.cluster = clusters.Cluster(folder.name, cpus=32, accounting=cls.ACCOUNTING, settings=f"""
JobSubmitPlugins=lua
LaunchParameters=use_interactive_step
PrologSlurmctld={folder.name}/controller
EpilogSlurmctld={folder.name}/controller
""" + cls.SETTINGS)
        cls.configure()
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    @classmethod
    def start_server(cls, gpus, index):
        server = Server(BUILD, index=index, options=("--users", "*", "--operators", "slurm", "--require-lease"),
                        environment={"SOFTGPU_DEVICES": str(gpus)})
        cls.addClassCleanup(server.stop)
        return server

    @classmethod
    def pool(cls):
        """The pool: all devices of the first two servers, and types with a dead server, with shares, and with a server that a
        test kills."""
        first, second, third = (f"127.0.0.1@{server.port}" for server in cls.servers)
        return f"""
soft   16G  {first}:0-{GPUS - 1} {second}:0-{GPUS - 1}
dead   16G  {DEAD}:0
half   16G  {DEAD}:1 {third}:0-1
part    8G  shares=2 {third}:2
frail  16G  127.0.0.1@{cls.frail.port}:0
"""

    @classmethod
    def configure(cls):
        """Configures the cluster as docs/slurm.md tells an administrator to do, with the paths of this build."""
        cluster, tree = cls.cluster, os.path.join(BUILD, "lib/slurm")
        for name, owner in (("given", "slurm"), ("jobs", USER)):
            os.mkdir(cluster.path(name))
            shutil.chown(cluster.path(name), owner)
        cluster.write("pool", cls.pool())
        cluster.append("slurm.conf", subprocess.run([f"{tree}/rcuda-slurm", "licenses"], text=True, check=True,
                                                    capture_output=True, env=dict(
                                                        os.environ, RCUDA_SLURM_POOL=cluster.path("pool"))).stdout)
        cluster.write("plugstack.conf", f"required {tree}/spank_rcuda.so\n")
        cluster.write("job_submit.lua", f"""
dofile("{tree}/job_submit.lua")
rcuda.pool = "{cluster.path('pool')}"
""")
        cluster.write("controller", f"""#!/bin/sh
export SLURM_CONF={cluster.path('slurm.conf')} RCUDA_SLURM_POOL={cluster.path('pool')} \
RCUDA_SLURM_STATE={cluster.path('given')}
[ $SLURM_SCRIPT_CONTEXT = prolog_slurmctld ] || [ ! -e {cluster.path('broken')} ] || exit 1
exec {tree}/rcuda-slurmctld 2>>{cluster.path('state')}/controller.log
""", mode=0o755)

    def program(self, name="vector_add"):
        return os.path.join(PROGRAMS, name)

    def run_command(self, *command, user=USER, **more):
        return self.cluster.run(*command, user=user, **more)

    def must(self, *command, **more):
        result = self.run_command(*command, **more)
        self.assertEqual(result.returncode, 0, f"{command}: {result.stdout}{result.stderr}{self.said()}")
        return result.stdout

    def expected(self, program):
        with open(os.path.join(HERE, f"../programs/expected/{program}.txt")) as file:
            return file.read()

    def servers_of(self, shown):
        """The servers in the RCUDA_DEVICES of a printed environment."""
        (devices,) = set(re.findall("^RCUDA_DEVICES=(.*)$", shown, re.M))
        return {device.rpartition(":")[0] for device in devices.split(",")}

    def controller(self, context, job, licences, status=0):
        """Runs the script that Slurm's controller runs before (prolog) and after (epilog) a job."""
        result = self.run_command(self.cluster.path("controller"), user="slurm", environment=dict(
            SLURM_SCRIPT_CONTEXT=context + "_slurmctld", SLURM_JOB_ID=job, SLURM_JOB_LICENSES=licences,
            SLURM_JOB_USER=USER, SLURM_CLUSTER_NAME=clusters.NAME))
        self.assertEqual(result.returncode, status, self.said())

    def said(self):
        return self.cluster.text("state/controller.log") + self.cluster.text("state/slurmctld.log")[-3000:]

    def leases(self):
        found = []
        for server in self.servers:
            listed = subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "list", "--json", f"127.0.0.1:{server.port}"],
                                    capture_output=True, text=True, check=True)
            found += json.loads(listed.stdout)
        return found

    def submit(self, *command, **more):
        return self.must("sbatch", "--parsable", "--output", self.cluster.path("jobs/%j"), *command, **more).strip()

    def state_of(self, job, format="%T"):
        """A field of the job, or of its first component if it has several."""
        return self.must("squeue", "-h", "-t", "all", "-j", job, "-o", format).strip().partition("\n")[0]

    def record(self, job, field):
        found = re.search(rf"^ *{field}=(.*)$", self.must("scontrol", "show", "job", job), re.M)
        return found[1] if found else ""

    def await_state(self, job, *states):
        self.assertTrue(eventually(lambda: self.state_of(job) in states), f"{self.state_of(job)}\n{self.said()}")

    def output_of(self, job):
        self.await_state(job, "COMPLETED", "FAILED", "CANCELLED")
        output = self.cluster.text(f"jobs/{job}")
        self.assertEqual(self.state_of(job), "COMPLETED", output + self.said())
        return output

    def hold_all(self):
        """Starts a job that holds every GPU until it is cancelled."""
        job = self.submit(f"--rcuda={2 * GPUS}", "--wrap", "sleep 1000")
        self.await_state(job, "RUNNING")
        return job

    def assert_all_free(self):
        self.assertTrue(eventually(lambda: not self.leases()), self.said())

    def tearDown(self):
        self.cluster.end_jobs()
        self.assert_all_free()


class JobsTest(SlurmCase):
    # ---- jobs of all forms ----

    def test_srun(self):
        shown = self.must("srun", "--rcuda=1", self.program())
        self.assertEqual(shown, self.expected("vector_add"))

    def test_sbatch(self):
        self.cluster.write("script", f"""#!/bin/bash
#SBATCH --rcuda=2:soft
#SBATCH --rcuda-mem=16G
env
{self.program()} && srun --ntasks=1 {self.program()}
""")
        job = self.submit(self.cluster.path("script"))
        output = self.output_of(job)
        self.assertEqual(output.count(self.expected("vector_add")), 2)
        server = self.servers_of(output)
        self.assertEqual(len(server), 1, "two GPUs of one server fit")
        self.assertIn("\nCUDA_VISIBLE_DEVICES=0,1\n", output)
        self.assertNotRegex(output, "RCUDA_LEASE=.*:", "a secret is not needed")

    def test_salloc(self):
        shown = self.must("salloc", "--rcuda=3", "sh", "-c", f"srun -n1 {self.program()}; srun -n1 env")
        self.assertIn(self.expected("vector_add"), shown)
        self.assertEqual(len(self.servers_of(shown)), 2)
        self.assertIn("\nCUDA_VISIBLE_DEVICES=0,1,2\n", shown)

    def test_the_shell_of_salloc_on_a_node(self):
        self.cluster.write("typed", f"env\n{self.program()}\nexit\n")
        with open(self.cluster.path("typed")) as typed:
            shown = self.must("script", "--quiet", "--return", "--command", "salloc --rcuda=2", "/dev/null",
                              stdin=typed, environment={"SHELL": "/bin/sh"}).replace("\r", "")
        self.assertIn("\nCUDA_VISIBLE_DEVICES=0,1\n", shown)
        self.assertIn(self.expected("vector_add"), shown)

    def test_a_job_without_remote_gpus_has_none(self):
        shown = self.must("srun", "env")
        for name in ("RCUDA_DEVICES", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"):
            self.assertNotIn(name, shown)

    def hetjob(self, program, options=""):
        self.cluster.write("hetjob", f"""#!/bin/bash
#SBATCH --ntasks=1 --time=5
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=1 --time=5
export HOME={self.cluster.path('jobs')} SOFTGPU_DEVICES=2 RCUDA_DRIVER=softgpu
{BUILD}/lib/slurm/rcuda-hetjob --server=--config=/dev/null --server=--pool=1 {options} -- {program}
echo "status $?"
""")
        return self.submit(self.cluster.path("hetjob"))

    def servers_of_user(self):
        """Processes of rcuda-server that a job has started."""
        found = []
        for status in glob.glob("/proc/[0-9]*/status"):
            try:
                with open(status) as file:
                    lines = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
            except OSError:
                continue  # it has ended
            if lines["Name"] == "rcuda-server" and int(lines["Uid"].split()[0]) == pwd.getpwnam(USER).pw_uid:
                found.append((status, lines["State"]))
        return found

    def test_servers_as_a_step_of_a_heterogeneous_job(self):
        output = self.output_of(self.hetjob(f"sh -c 'env; exec {self.program()}'"))
        self.assertIn(self.expected("vector_add"), output)
        self.assertRegex(output, r"\nRCUDA_DEVICES=n\d@\d+:0,n\d@\d+:1,n\d@\d+:0,n\d@\d+:1\n")
        self.assertEqual(len(self.servers_of(output)), 2)
        self.assertIn("\nstatus 0\n", output)
        self.assertIn("\nstatus 7\n", self.output_of(self.hetjob("sh -c 'exit 7'")))

    def test_a_server_that_does_not_start_ends_a_heterogeneous_job(self):
        # Both nodes are this machine, so only one of the servers gets the port.
        output = self.output_of(self.hetjob("true", "--server=--port=18308"))
        self.assertIn("the servers of component 1 did not start", output)
        self.assertIn("\nstatus 1\n", output)
        self.assertTrue(eventually(lambda: not self.servers_of_user()), self.servers_of_user())

    def test_servers_of_a_cancelled_heterogeneous_job_end(self):
        job = self.hetjob(f"{BUILD}/tests/e2e/endless")
        self.assertTrue(eventually(lambda: "running" in self.cluster.text(f"jobs/{job}")), self.cluster.text(f"jobs/{job}"))
        self.assertTrue(self.servers_of_user())
        self.must("scancel", job)
        self.assertTrue(eventually(lambda: not self.servers_of_user()), self.servers_of_user())

    # ---- who sees what ----

    def ranks(self, *options):
        shown = self.must("srun", "-N2", "--ntasks-per-node=2", "--rcuda=4", *options, "sh", "-c",
                          "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES $RCUDA_DEVICES")
        ranks = sorted(line.split() for line in shown.splitlines())
        self.assertEqual(len({devices for _, _, devices in ranks}), 1)
        self.assertEqual(len(ranks[0][2].split(",")), 4)
        return [visible for _, visible, _ in ranks]

    def test_ranks_see_what_they_see_on_machines_with_gpus(self):
        self.assertEqual(self.ranks(), ["0,1", "0,1", "2,3", "2,3"])
        self.assertEqual(self.ranks("--rcuda-bind=task"), ["0", "1", "2", "3"])
        self.assertEqual(self.ranks("--rcuda-bind=job"), ["0,1,2,3"] * 4)

    def test_each_rank_uses_its_own_gpu(self):
        shown = self.must("srun", "-N2", "--ntasks-per-node=2", "--rcuda=4", "--rcuda-bind=task", self.program())
        self.assertEqual(sorted(shown.splitlines()), sorted(self.expected("vector_add").splitlines() * 4))

    def test_ranks_of_an_mpi_library(self):
        """Open MPI, which srun starts by PMIx: on one node, and on two that, like two machines, do not share memory."""
        program = os.path.join(HERE, "mpi_ranks.py")
        two = dict(OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo")
        for bind, nodes, settings in (("node", 1, {}), ("node", 2, two), ("task", 2, two)):
            shown = self.must("srun", "--mpi=pmix", f"-N{nodes}", f"--ntasks-per-node={4 // nodes}", "--rcuda=4", f"--rcuda-bind={bind}",
                              "/usr/bin/python3", program, environment=settings)
            ranks = re.findall(r"^rank (\d) of 4: sum 10 on ([0-9a-f]{32})$", shown, re.M)
            self.assertEqual([rank for rank, _ in ranks], list("0123"), shown)
            self.assertEqual(len({gpu for _, gpu in ranks}), 4, shown)

    def test_the_controller_is_asked_once(self):
        self.cluster.run("scontrol", "setdebug", "debug2")
        self.addCleanup(self.cluster.run, "scontrol", "setdebug", "verbose")
        done = self.cluster.path("jobs/done")  # a file, because squeue would also ask the controller
        for command in (("srun", "-N3", "--rcuda=3", "touch", done),
                        ("sbatch", "-N3", "--rcuda=3", "--output=/dev/null", "--wrap", f"srun true; srun true; touch {done}")):
            before = len(self.cluster.text("state/slurmctld.log"))
            self.must(*command)
            self.assertTrue(eventually(lambda: os.path.exists(done)), self.said())
            os.remove(done)
            said = self.cluster.text("state/slurmctld.log")[before:]
            self.assertEqual(said.count("RPC: REQUEST_JOB_INFO_SINGLE "), 1, said)

    def test_a_lease_is_for_its_user(self):
        job = self.submit("--rcuda=1", "--wrap", "env; sleep 1000")
        self.await_state(job, "RUNNING")
        self.assertTrue(eventually(lambda: "RCUDA_LEASE" in self.cluster.text(f"jobs/{job}")))
        given = dict(line.split("=", 1) for line in self.cluster.text(f"jobs/{job}").splitlines() if "=" in line)
        stolen = {name: given[name] for name in ("RCUDA_DEVICES", "RCUDA_LEASE", "LD_PRELOAD")}
        result = self.run_command(self.program(), user=OTHER, environment=stolen)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"is for user {USER}, not for", result.stderr)

    # ---- what does not fit ----

    def test_more_than_there_are_waits(self):
        first = self.hold_all()
        second = self.submit("--rcuda=1", "--wrap", self.program())
        self.assertTrue(eventually(lambda: self.state_of(second, "%r") == "Licenses"), self.state_of(second, "%r"))
        self.assertIn("Unable to allocate", self.run_command("srun", "--immediate=1", "--rcuda=1", "true").stderr)
        self.must("scancel", first)
        self.assertIn(self.expected("vector_add"), self.output_of(second))

    def test_what_cannot_be_is_refused(self):
        for option, text in (("--rcuda=0", "write how many"), ("--rcuda=1:h100", "it has soft (16G), "),
                             ("--rcuda=5", "Invalid license"), ("--rcuda-mem=1G", "needs --rcuda=N")):
            result = self.run_command("srun", option, "true")
            self.assertNotEqual(result.returncode, 0, option)
            self.assertIn(text, result.stderr)
        self.assertIn("the pool has no remote GPUs with 17G",
                      self.run_command("sbatch", "--rcuda=1", "--rcuda-mem=17G", "--wrap", "true").stderr)

    def test_a_step_cannot_ask_for_other_gpus(self):
        job = self.submit("--rcuda=2", "--wrap", "srun -n1 --rcuda=1 true; echo status $?")
        self.assertRegex(self.output_of(job), r"rcuda: the step asks for 1 remote GPUs, and the job has 2(.|\n)*status [1-9]")

    # ---- ends ----

    def test_a_cancelled_job_leaves_nothing(self):
        job = self.submit("--rcuda=4", "--wrap", f"exec {BUILD}/tests/e2e/endless")
        self.assertTrue(eventually(lambda: "running" in self.cluster.text(f"jobs/{job}")), self.said())
        self.assertEqual({lease["job"] for lease in self.leases()}, {f"slurm {job}@{clusters.NAME}"})
        self.assertIn(f"job slurm {job}@", "".join(server.status(BUILD) for server in self.servers))
        self.must("scancel", job)
        self.assert_all_free()
        self.assertTrue(eventually(lambda: not any(server.sessions(BUILD) for server in self.servers)))

    def test_a_controller_that_cannot_keep_its_state_says_so(self):
        os.rename(self.cluster.path("given"), self.cluster.path("moved"))
        self.addCleanup(os.rename, self.cluster.path("moved"), self.cluster.path("given"))
        with open(self.cluster.path("given"), "w"):
            pass  # a file in place of the folder
        self.addCleanup(os.remove, self.cluster.path("given"))
        self.assertIn(f"Not a directory: '{self.cluster.path('given')}/lock'",
                      self.run_command("srun", "--rcuda=1", "true").stderr)

    def test_a_node_that_fails_keeps_no_gpu(self):
        job = self.submit("--rcuda=4", "--no-requeue", "--nodelist=n2", "--wrap", "sleep 1000")
        self.await_state(job, "RUNNING")
        self.addCleanup(self.cluster.run, "scontrol", "update", "NodeName=n2", "State=RESUME")
        self.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        self.await_state(job, "NODE_FAIL")
        self.assert_all_free()

    def test_a_job_of_a_failed_node_runs_again_elsewhere(self):
        job = self.submit("--rcuda=4", "--requeue", "--nodelist=n2", "--wrap",
                          f"[ $SLURM_RESTART_COUNT ] && {self.program()} || exec {BUILD}/tests/e2e/endless")
        self.assertTrue(eventually(lambda: "running" in self.cluster.text(f"jobs/{job}")), self.said())
        self.addCleanup(self.cluster.run, "scontrol", "update", "NodeName=n2", "State=RESUME")
        self.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        self.await_state(job, "PENDING")
        self.must("scontrol", "update", f"JobId={job}", "ReqNodeList=", "StartTime=now")
        self.assertIn(self.expected("vector_add"), self.output_of(job))
        self.assertTrue(eventually(lambda: not any(server.sessions(BUILD) for server in self.servers)))

    def test_prolog_and_epilog_may_run_twice(self):
        job = self.submit("--rcuda=2", "--wrap", "sleep 1000")
        self.await_state(job, "RUNNING")
        before = self.leases()
        self.controller("prolog", job, "rcuda_soft:2")
        self.assertEqual(self.leases(), before)
        for _ in range(2):
            self.controller("epilog", job, "rcuda_soft:2")
            self.assertEqual(self.leases(), [])

    def test_an_epilog_that_never_ran_is_made_up_for(self):
        self.cluster.write("broken", "")
        self.addCleanup(lambda: os.path.exists(self.cluster.path("broken")) and os.remove(self.cluster.path("broken")))
        job = self.hold_all()
        self.must("scancel", job)
        self.await_state(job, "CANCELLED")
        self.assertEqual(len(self.leases()), 2)
        os.remove(self.cluster.path("broken"))
        self.must("srun", "--rcuda=4", "true")

    def test_a_job_array_shares_no_gpu(self):
        """Each job marks its GPU while it uses it. A job that finds a mark fails."""
        marks = self.cluster.path("jobs/marks")
        os.mkdir(marks)
        shutil.chown(marks, USER)
        count = 200 if SLOW else 12
        job = self.submit(f"--array=1-{count}", "--rcuda=1", "--output=/dev/null", "--wrap",
                          f"cd {marks} && mkdir $RCUDA_DEVICES && {self.program()} >/dev/null && rmdir $RCUDA_DEVICES "
                          "&& touch done-$SLURM_ARRAY_TASK_ID")
        self.assertTrue(eventually(lambda: len(os.listdir(marks)) >= count and not self.must("squeue", "-h"), 400 if SLOW else 200),
                        f"{os.listdir(marks)}\n{self.said()}")
        self.assertEqual(sorted(os.listdir(marks)), sorted(f"done-{i}" for i in range(1, count + 1)))
        shutil.rmtree(marks)

    def test_sharing_is_asked_for_by_a_type(self):
        jobs = [self.submit("--rcuda=1:part", "--wrap", f"exec {BUILD}/tests/e2e/endless") for _ in range(2)]
        for job in jobs:
            self.assertTrue(eventually(lambda job=job: "running" in self.cluster.text(f"jobs/{job}")), self.said())
        self.assertEqual([lease["devices"] for lease in self.leases()], [[2], [2]])
        third = self.submit("--rcuda=1:part", "--wrap", "true")
        self.assertTrue(eventually(lambda: self.state_of(third, "%r") == "Licenses"))

    # ---- failures ----

    def test_a_dead_server_is_passed_over(self):
        self.assertEqual(self.must("srun", "--rcuda=1:half", self.program()), self.expected("vector_add"))

    def check_pool(self, count):
        """Runs the command that the timer runs. `count`: how many licences of type half must be held afterwards."""
        done = self.run_command(f"{BUILD}/lib/slurm/rcuda-slurm", "check", user="slurm", environment=dict(
            RCUDA_SLURM_POOL=self.cluster.path("pool"), RCUDA_SLURM_STATE=self.cluster.path("given")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(self.must("scontrol", "show", "licenses", "-o"), f"LicenseName=rcuda_half .*Reserved={count} ")
        return done.stdout

    def operate(self, server, *what):
        subprocess.run([f"{BUILD}/bin/rcuda-smi", *what, f"127.0.0.1:{server.port}"], check=True, capture_output=True)

    def test_a_job_waits_in_the_queue_for_a_server_that_is_away(self):
        self.addCleanup(self.cluster.run, "scontrol", "delete", "ReservationName=rcuda")
        self.assertRegex(self.check_pool(1), rf"(?m)^{DEAD}: cannot connect to 127\.0\.0\.1:1 ")
        # A drained server takes no new sessions and stops at the end of the last one.
        running = self.submit("--rcuda=1:half", "--wrap", f"exec {BUILD}/tests/e2e/endless")
        self.assertTrue(eventually(lambda: "running" in self.cluster.text(f"jobs/{running}")), self.said())
        self.operate(self.servers[2], "drain", "--no-wait")
        self.addCleanup(self.operate, self.servers[2], "resume")
        self.assertIn("is drained", self.check_pool(2))
        waiting = self.submit("--rcuda=1:half", "--wrap", self.program())
        self.assertTrue(eventually(lambda: self.state_of(waiting, "%T %r") in ("PENDING Licenses", "PENDING Reservation")),
                        self.state_of(waiting, "%T %r"))
        self.assertEqual(self.must("squeue", "-h", "-t", "R", "-o", "%A").split(), [running])
        self.operate(self.servers[2], "resume")
        self.check_pool(1)
        self.assertIn(self.expected("vector_add"), self.output_of(waiting))

    def test_without_a_live_server_a_job_is_requeued_and_says_why(self):
        why = r"cannot connect to 127\.0\.0\.1:1 \(Connection refused\)"
        job = self.submit("--rcuda=1:dead", "--wrap", "true")
        self.assertTrue(eventually(lambda: "Restarts=1" in self.must("scontrol", "show", "job", job)), self.said())
        self.await_state(job, "PENDING")
        self.assertRegex(self.record(job, "AdminComment"),
                         f"^rcuda: the job asks for 1 GPU of type dead; available: 0; {why}")
        result = self.run_command("srun", "--rcuda=1:dead", "true")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, f"rcuda: the job asks for 1 GPU of type dead; available: 0; {why}")

    def test_a_server_that_dies_ends_the_job_with_one_line(self):
        job = self.submit("--rcuda=1:frail", "--wrap", f"exec {BUILD}/tests/e2e/endless")
        self.assertTrue(eventually(lambda: "running" in self.cluster.text(f"jobs/{job}")), self.said())
        for process in (*self.frail.workers(), self.frail.process.pid):
            os.kill(process, signal.SIGKILL)
        self.frail.process.wait()
        self.await_state(job, "FAILED")
        self.assertEqual(self.cluster.text(f"jobs/{job}").count("is lost"), 1)
        # The lease still exists when the server is back, so until then no other job gets the GPU.
        shown = self.run_command("sh", "-c", f"RCUDA_SLURM_STATE={self.cluster.path('given')} "
                                 f"{BUILD}/lib/slurm/rcuda-slurm show", user="slurm").stdout
        self.assertRegex(shown, rf"(?m)^{job}/[0-9a-f]+ frail .* \(not released yet\)$")


class AccountingTest(SlurmCase):
    ACCOUNTING = True
    SETTINGS = "AccountingStorageTRES=license/rcuda_soft\n"

    def test_a_jobs_record_says_what_it_did(self):
        job = self.submit("--rcuda=2", "--wrap", f"{self.program()} && {self.program()}")
        self.output_of(job)

        def record():
            shown = self.must("sacct", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES,AdminComment,SystemComment")
            return (shown.strip().split("|") + [""] * 3)[:3]
        self.assertTrue(eventually(lambda: record()[2]), f"{record()}\n{self.said()}")
        resources, given, done = record()
        self.assertIn("license/rcuda_soft=2", resources)
        self.assertRegex(given, r"^rcuda: [0-9a-f]{8} 127\.0\.0\.1@\d+:0-1$")
        figures = dict(word.split("=") for word in done.removeprefix("rcuda: ").split())
        self.assertEqual((figures["sessions"], figures["bytes_to_server"]), ("2", "0"), done)
        self.assertLess(int(figures["peak_memory"]), 1 << 30, done)
        for name in ("device_seconds", "launches", "bytes_to_device", "bytes_to_host", "peak_memory"):
            self.assertGreater(float(figures[name]), 0, done)


if __name__ == "__main__":
    if os.environ.get("RCUDA_SLURM_INSIDE") != "1":
        check_machine()
    clusters.enter_namespaces()
    SLOW = "--slow" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--slow"]
    run_tests(globals(), "programs")
