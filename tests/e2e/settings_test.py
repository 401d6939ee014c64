#!/usr/bin/env python3
"""Unusable settings of a server: --check-config and the start print the same message and have the same exit status. Also
what both print about the files that they read.

    settings_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from servers import eventually, make_certificate, run_tests, Server, UNUSABLE_SETTINGS, WRONG_OPTIONS

BUILD = None
NOBODY = 65534


class SettingsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("tokens", "")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def as_nobody(self):
        """Gives the test's folder to another user. Returns the options of subprocess with which a program runs as that user."""
        identity = dict(user=NOBODY, group=NOBODY, extra_groups=[])
        if subprocess.run(["test", "-x", os.path.join(BUILD, "bin/rcuda-server")], **identity).returncode != 0:
            self.skipTest("the build folder is closed to other users")
        for path in (self.folder, self.path("tokens")):
            os.chown(path, NOBODY, NOBODY)
        return identity

    def run_server(self, *options, identity={}, **settings):
        """Runs a server that ends by itself. Its settings are in the test's folder."""
        environment = dict(os.environ, XDG_CONFIG_HOME=self.folder, RCUDA_SERVER_TOKENS=self.path("tokens"),
                           RCUDA_SERVER_LEASES="none", RCUDA_SERVER_CGROUP="none", RCUDA_DRIVER="softgpu",
                           RCUDA_SERVER_PORT="0")
        environment.update(settings)
        options = options if "--config" in options else ("--config", "/dev/null", *options)
        return subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), *options], env=environment,
                              capture_output=True, text=True, timeout=60, **identity)

    def check_one_line(self, text, said):
        """Checks that the error is one line. The other lines must name the files that are read, or be information."""
        lines = [line for line in text.splitlines()
                 if not re.fullmatch(r"rcuda-server: (reads|there is no file) \S+|.* info: .*", line)]
        self.assertEqual(len(lines), 1, text)
        self.assertIn(said, lines[0])

    def test_the_check_finds_what_makes_the_start_fail(self):
        text = self.write("text", "neither a key nor a token\n")
        open_tokens = self.write("open", "", 0o644)
        other_library = os.path.join(BUILD, "tests/unit/server/libserver_broken_driver.so")
        for options, settings, *said in (
                (["--audit", self.path("none/audit")], {}, "RCUDA_SERVER_AUDIT", "none/audit", "No such file"),
                ([], {"RCUDA_SERVER_LEASES": text + "/leases"}, "RCUDA_SERVER_LEASES=", text + " is not a folder"),
                # A misspelt path: the server does not make the folder, and does not start.
                ([], {"RCUDA_SERVER_LEASES": self.path("none/leases")}, f"RCUDA_SERVER_LEASES={self.path('none/leases')} (from",
                 f"there is no folder {self.path('none')}: make it, or correct the setting"),
                (["--image-cache", self.path("none")], {}, f"RCUDA_SERVER_IMAGE_CACHE={self.path('none')} (from",
                 f"there is no folder {self.path('none')}: make it, or correct the setting"),
                (["--tokens", self.path("none")], {}, f"RCUDA_SERVER_TOKENS={self.path('none')} (from",
                 f'there is no file {self.path("none")}: correct the setting, or make the file with "rcuda-token create --file '),
                (["--image-cache", text], {}, "RCUDA_SERVER_IMAGE_CACHE=", text + " is not a folder"),
                ([], {"RCUDA_SERVER_NCCL": self.path("none.so")}, "RCUDA_SERVER_NCCL=" + self.path("none.so"),
                 "cannot read the file: No such file"),
                ([], {"RCUDA_SERVER_NCCL": other_library}, f"RCUDA_SERVER_NCCL={other_library} is not usable: ",
                 "is not an NCCL of version 2.14 or later"),
                ([], {"RCUDA_SERVER_NCCL": text}, "the file is not a library: name a libnccl.so.2"),
                ([], {"RCUDA_SERVER_NCCL": "yes"}, "it takes auto, none or the path of a libnccl.so.2"),
                (["--config", self.write("nccl.toml", "port = 0\nnccl = '/no/such/nccl.so'\n")], {},
                 "nccl.toml:2", "/no/such/nccl.so"),
                (["--config", self.write("quotes.toml", "port = 0\nlisten = 0.0.0.0\n")], {}, "quotes.toml:2: ",
                 'write listen = "0.0.0.0"'),
                (["--config", self.path("none.toml")], {}, f"there is no file {self.path('none.toml')}: correct its name"),
                (["--listen", "no such host"], {}, "no such host", "--listen takes an address"),
                (["--devices", "7"], {}, "this machine has no device 7"),
                (["--driver", self.path("libcuda.so")], {}, "libcuda.so", "RCUDA_DRIVER"),
                ([], {"RCUDA_SERVER_CGROUP": self.folder}, "RCUDA_SERVER_CGROUP=" + self.folder, "has none of the controllers"),
                (["--tokens", open_tokens], {}, "chmod 600 " + open_tokens),
                (["--tokens", text], {}, text),
                (["--certificate", text], {}, text),
                (["--certificate", self.path("none.pem")], {}, "there is no file " + self.path("none.pem"),
                 self.path("rcuda/server.pem") if os.geteuid() else "/etc/rcuda/server.pem"),
                (["--config", self.write("writable.toml", "port = 0\n", 0o666)], {}, "chmod go-w"),
                (["--config", self.write("prot.toml", "users = ''\nprot = 1\n")], {}, "prot.toml:2: ", "did you mean port?"),
                (["--config", self.write("table.toml", "[limits.user]\nport = 1\n")], {}, "table.toml:2: ",
                 "settings of the server are above the first [table]"),
                (["--config", self.write("limit.toml", "[limit.user]\nsessions = 1\n")], {}, "limit.toml:2: ",
                 "'limit' is not a table; did you mean limits?"),
                (["--config", self.write("each.toml", "[limits.user]\nidle_time = '1h'\n")], {}, "each.toml:2: ",
                 "write it below [limits.session]"),
                (["--config", self.write("value.toml", "pool = 100\n")], {}, "value.toml:1)", "from 0 to 64"),
                (["--config", self.write("kind.toml", "oversubscribe = true\n")], {}, "kind.toml:1)", "it takes a number"),
                (["--insecure", "--listen", "0.0.0.0"], {}, "public address")):
            for check in ([], ["--check-config"]):
                with self.subTest(options=options, check=check):
                    result = self.run_server(*options, *check, **settings)
                    self.assertEqual(result.returncode, UNUSABLE_SETTINGS, result.stderr)
                    self.assertEqual(result.stdout, "")
                    for part in said:
                        self.assertIn(part, result.stderr)
                    self.check_one_line(result.stderr, said[-1])
        self.assertFalse(os.path.exists(self.path("none")))

    def test_an_error_of_the_start_names_the_line_of_the_file(self):
        other_library = os.path.join(BUILD, "tests/unit/server/libserver_broken_driver.so")
        for line, said, status in (("users = 'nobody-has-this-name'", 'RCUDA_SERVER_USERS names "nobody-has-this-name"', 1),
                                   ("operators = '@no-such-group'", 'RCUDA_SERVER_OPERATORS names "@no-such-group"', 1),
                                   (f"audit = '{self.path('none/audit')}'", "RCUDA_SERVER_AUDIT: cannot write", UNUSABLE_SETTINGS),
                                   (f"certificate = '{self.path('none.pem')}'", "there is no file", UNUSABLE_SETTINGS),
                                   ("listen = 'no such host'", "--listen takes an address", UNUSABLE_SETTINGS),
                                   ("devices = [7]", "this machine has no device 7", UNUSABLE_SETTINGS),
                                   (f"driver = '{self.path('libcuda.so')}'", "libcuda.so", UNUSABLE_SETTINGS),
                                   (f"nccl = '{other_library}'", "is not an NCCL of version 2.14 or later", UNUSABLE_SETTINGS)):
            config = self.write("lines.toml", "# the server of a test\n" + line + "\n")
            for check in ([], ["--check-config"]):
                with self.subTest(line=line, check=check):
                    driver = {"RCUDA_DRIVER": ""} if line.startswith("driver") else {}  # the environment wins over the file
                    result = self.run_server("--config", config, *check, **driver)
                    self.assertEqual(result.returncode, status, result.stderr)
                    self.assertIn(config + ":2: ", result.stderr)
                    self.assertIn(said, result.stderr)
                    self.check_one_line(result.stderr, config + ":2: ")

    def test_softgpu_does_not_replace_a_library_of_the_driver_that_cannot_be_loaded(self):
        os.mkdir(self.path("driver"))
        self.write("driver/libcuda.so.1", "\177ELF")
        for check in ([], ["--check-config"]):
            result = self.run_server(*check, RCUDA_DRIVER="auto", LD_LIBRARY_PATH=self.path("driver"))
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("this machine has NVIDIA's driver (" + self.path("driver/libcuda.so.1") + ": ", result.stderr)

    def test_wrong_options_have_the_same_status_in_all_programs(self):
        for options, *said in ((["--lisen", "127.0.0.1"], "rcuda-server: unknown option --lisen; did you mean --listen?"),
                               (["--staging-bytes", "64"], "at least 2 MiB"),
                               (["--port"], "rcuda-server: --port")):
            for check in ([], ["--check-config"]):
                with self.subTest(options=options, check=check):
                    result = self.run_server(*check, *options)
                    self.assertEqual((result.returncode, result.stdout), (WRONG_OPTIONS, ""), result.stderr)
                    for part in said:
                        self.assertIn(part, result.stderr)

    # systemd starts the server again, because the address or the cgroup may exist then.
    def test_a_failure_that_a_restart_may_fix_has_another_status(self):
        for options, settings, *said in (
                (["--listen", "192.0.2.1"], {}, "192.0.2.1", "--listen takes an address of this machine"),
                ([], {"RCUDA_SERVER_CGROUP": self.path("group")}, "RCUDA_SERVER_CGROUP=" + self.path("group"),
                 "has none of the controllers"),
                (["--users", "no-such-user"], {}, "RCUDA_SERVER_USERS", "no-such-user"),
                (["--operators", "@no-such-group"], {}, "RCUDA_SERVER_OPERATORS", "@no-such-group")):
            for check in ([], ["--check-config"]):
                with self.subTest(options=options, check=check):
                    result = self.run_server(*options, *check, **settings)
                    self.assertEqual(result.returncode, 1, result.stderr)
                    for part in said:
                        self.assertIn(part, result.stderr)

    @unittest.skipIf(os.geteuid() != 0, "mounts a full disk")
    def test_a_full_disk_is_not_a_wrong_setting(self):
        full = self.path("full")
        os.mkdir(full)
        mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o nr_inodes=1 none {full} && exec "$@"', "sh"]
        for options in (["--audit", full + "/audit"], ["--listen", "0.0.0.0"]):
            environment = dict(os.environ, XDG_CONFIG_HOME=self.folder, RCUDA_SERVER_LEASES="none", RCUDA_DRIVER="softgpu",
                               RCUDA_SERVER_TOKENS=self.path("tokens"), RCUDA_SERVER_PORT="0")
            if "--listen" in options:
                mount[4] = f'mount -t tmpfs -o nr_inodes=1 none {full} && mount --bind {full} /etc/rcuda && exec "$@"'
                if not os.path.isdir("/etc/rcuda"):
                    continue
            result = subprocess.run([*mount, os.path.join(BUILD, "bin/rcuda-server"), "--config", "/dev/null", *options],
                                    env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("No space left on device", result.stderr)

    def test_a_group_of_the_own_user_may_write_the_settings(self):
        identity = self.as_nobody() if os.geteuid() == 0 else {}
        config = self.write("server.toml", "port = 0\n", 0o664)
        for group, status in ((identity.get("group", os.getegid()), 0), *([(0, UNUSABLE_SETTINGS)] if identity else ())):
            os.chown(config, NOBODY if identity else -1, group)
            os.chmod(config, 0o664)
            result = self.run_server("--config", config, "--check-config", identity=identity)
            self.assertEqual(result.returncode, status, result.stderr)
        if identity:
            os.chmod(config, 0o644)
            os.chown(config, 1, NOBODY)  # owners as in a container
            self.assertEqual(self.run_server("--config", config, "--check-config", identity=identity).returncode, 0)
            self.assertIn("user 1 owns", self.run_server("--config", config, "--check-config").stderr)

    def test_the_check_names_the_files_and_changes_nothing(self):
        make_certificate(BUILD, self.path("server.pem"))
        config = self.write("server.toml", "port = 0\n")
        before = sorted(os.listdir(self.folder))
        result = self.run_server("--check-config", "--config", config, "--certificate", self.path("server.pem"),
                                 "--audit", self.path("audit"))
        self.assertEqual((result.returncode, result.stdout), (0, "the configuration is usable\n"), result.stderr)
        for part in (f"reads {config}\n", f"reads {self.path('server.pem')}\n", f"reads {self.path('tokens')}\n"):
            self.assertIn("rcuda-server: " + part, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_the_check_succeeds_beside_a_server_with_the_same_settings(self):
        server = Server(BUILD)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        for address in ("127.0.0.1", "127.0.0.2"):
            checked = self.run_server("--check-config", "--listen", address, "--port", str(server.port))
            self.assertEqual(checked.returncode, 0, checked.stderr)
        result = self.run_server("--port", str(server.port))
        self.assertEqual(result.returncode, 1, result.stderr)  # a later start may succeed
        self.assertIn("is taken", result.stderr)

    def test_a_new_key_is_reported(self):
        user = self.as_nobody()["user"] if os.geteuid() == 0 else None  # root's key is in /etc
        server = Server(BUILD, options=("--listen", "0.0.0.0"), environment=dict(XDG_CONFIG_HOME=self.folder), user=user)
        os.unlink(self.path("rcuda/server.pem"))  # a reload makes no new key, because that would make all tokens invalid
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(eventually(lambda: "cannot reload the settings" in server.text()), server.text())
        self.assertIn("server.pem any more; restore it, or restart the server", server.text())
        self.assertFalse(os.path.exists(self.path("rcuda/server.pem")))
        self.assertEqual(server.stop(), 0, server.text())
        self.assertRegex(server.text(), f"made a new key for TLS in {self.path('rcuda/server.pem')}, with the fingerprint "
                                        r"[-\w]{43}: ")

    def test_a_broken_driver_is_not_replaced(self):
        os.symlink(os.path.join(BUILD, "tests/unit/server/libserver_broken_driver.so"), self.path("libcuda.so.1"))
        for check in ([], ["--check-config"]):
            result = self.run_server("--driver", "auto", *check, LD_LIBRARY_PATH=self.folder)
            self.assertEqual(result.returncode, 1, result.stderr)
            for part in ("libserver_broken_driver.so", "restart the machine", "--driver softgpu"):
                self.assertIn(part, result.stderr)
        result = self.run_server("--driver", "softgpu", "--check-config", LD_LIBRARY_PATH=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)

    @unittest.skipIf(os.geteuid() != 0, "makes device nodes")
    def test_a_trace_of_a_driver_is_not_passed_over(self):
        """There is one of the device nodes of NVIDIA's kernel driver, but no library."""
        nodes = self.path("dev")
        os.mkdir(nodes)
        script = (f'mount -t tmpfs none {nodes} && cp -a /dev/null /dev/zero /dev/random /dev/urandom /dev/fd {nodes} && '
                  f'mkdir {nodes}/shm && cp -a /dev/null {nodes}/$1 && mount --bind {nodes} /dev && shift && exec "$@"')
        for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
            for driver, check, status in (("auto", [], 1), ("auto", ["--check-config"], 1), ("softgpu", ["--check-config"], 0)):
                with self.subTest(node=node, driver=driver, check=check):
                    result = subprocess.run(
                        ["unshare", "-m", "sh", "-c", script, "sh", node, os.path.join(BUILD, "bin/rcuda-server"), "--config",
                         "/dev/null", "--port", "0", "--driver", driver, *check],
                        env=dict(os.environ, RCUDA_SERVER_LEASES="none"), capture_output=True, text=True, timeout=60)
                    self.assertEqual(result.returncode, status, result.stderr)
                    if status:
                        self.assertIn(f"this machine has NVIDIA's driver (/dev/{node}), but it does not work", result.stderr)
                        self.assertIn("--driver softgpu", result.stderr)

    def test_settings_are_listed_as_people_write_them(self):
        config = self.write("server.toml", "start_timeout = '2m'\n[image_cache]\nbytes = '1.5G'\n")
        result = self.run_server("--list-settings", "--config", config, RCUDA_SERVER_STOP_TIMEOUT="1500ms")
        for part in ("RCUDA_SERVER_HANDSHAKE_TIMEOUT=10s  (default", "RCUDA_SERVER_STAGING_BYTES=64 MiB  (default",
                     f"RCUDA_SERVER_START_TIMEOUT=2m  (from {config}:1;", f"RCUDA_SERVER_IMAGE_CACHE_BYTES=1.5 GiB  (from {config}:3;",
                     "RCUDA_SERVER_STOP_TIMEOUT=1500ms  (from the environment"):
            self.assertIn(part, result.stdout)

    def test_a_misspelt_variable_is_reported(self):
        result = self.run_server("--check-config", RCUDA_SERVER_USER="ada", RCUDA_DEVICE="node1:0")
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("RCUDA_SERVER_USER is not a variable of rcuda; did you mean RCUDA_SERVER_USERS?",
                     "RCUDA_DEVICE is not a variable of rcuda; did you mean RCUDA_DEVICES?"):
            self.assertEqual(result.stderr.count(part), 1, result.stderr)

    def test_wrong_values_of_options_are_refused_alike(self):
        for arguments, said in ((["rcuda-run", "--wait", "ten", "--", "true"], '"ten" is not a time'),
                                (["rcuda-smi", "top", "--every", "2h"], "2h is not a time from 100ms to 1h"),
                                (["rcuda-smi", "a:b:c"], '"a:b:c" is not a server'),
                                (["rcuda-token", "create", "--expires", "soon"], '"soon" is not usable: write a time from now'),
                                (["rcuda-token", "create", "--role", "x"], '"x" is not a role'),
                                (["rcuda-token", "create", "--server", "a b"], '"a b" is not usable: write host'),
                                (["rcuda-p2p", "plan", "--from", "node1", "--to", "node2:0"], '"node1" is not a device'),
                                (["rcuda-p2p", "plan", "--from", "node1:0", "--to", "node2:0", "--sizes", "4Q"], '"4Q" is not a size'),
                                (["rcuda-lease", "take", "node1", "--for", "2x"], '"2x" is not usable: write a time from now'),
                                (["rcuda-server", "--pool-time", "x"], "unknown option --pool-time"),
                                (["rcuda-server", "--port", "x"], "--port=x (from the command line) is not usable")):
            with self.subTest(arguments=arguments):
                result = subprocess.run([os.path.join(BUILD, "bin", arguments[0]), *arguments[1:]], capture_output=True,
                                        text=True, timeout=60)
                self.assertEqual((result.returncode, result.stdout), (WRONG_OPTIONS, ""), result.stderr)
                self.assertTrue(result.stderr.startswith(arguments[0] + ": "), result.stderr)
                self.assertIn(said, result.stderr)

    def test_tools_refuse_wrong_options_alike(self):
        tools = sorted(name for name in os.listdir(os.path.join(BUILD, "bin"))
                       if name.startswith("rcuda-"))
        self.assertIn("rcuda-smi", tools)
        for tool in tools:
            with self.subTest(tool=tool):
                result = subprocess.run([os.path.join(BUILD, "bin", tool), "--vesrion"], capture_output=True, text=True,
                                        timeout=60)
                self.assertEqual((result.returncode, result.stdout), (WRONG_OPTIONS, ""), result.stderr)
                self.assertTrue(result.stderr.startswith(f"{tool}: unknown option --vesrion; did you mean --version?"),
                                result.stderr)


if __name__ == "__main__":
    run_tests(globals())
