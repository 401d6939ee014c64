#!/usr/bin/env python3
"""rcuda-token: makes, lists and revokes tokens, for users whom the caller may act for.

    token_test.py RCUDA_TOKEN
"""

import calendar
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

TOKEN = ""
NOBODY = 65534
TEXT = re.compile(r"(?:\S+ )?rcuda1\.([0-9a-f]{8})\.([\w-]{43})\.([\w-]{43})\n")


class TokenTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # If possible, runs the tool as a user who is not root, because root's files are in /etc.
        self.identity = {}
        self.program = shutil.copy(TOKEN, self.folder)
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            self.identity = dict(user=NOBODY, group=NOBODY, extra_groups=[])
        self.home = os.path.join(self.folder, "home")

    def run_as(self, identity, *arguments, input="", **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("XDG_CONFIG_HOME", "RCUDA_TOKEN_FILE")}
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, cwd="/", input=input,
                              env=dict(environment, HOME=self.home, **variables), **identity)

    def run_tool(self, *arguments, **more):
        return self.run_as(self.identity, *arguments, **more)

    def create(self, *arguments):
        result = self.run_tool("create", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = TEXT.fullmatch(result.stdout)
        self.assertTrue(found, result.stdout)
        return found, result.stderr

    def check_refused(self, result, *texts):
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("rcuda-token: "), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)

    def rows(self):
        result = self.run_tool("list")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return {line.split()[0]: line for line in result.stdout.splitlines()}

    def test_a_token_is_made_shown_once_and_revoked(self):
        first, said = self.create("--label", "my laptop")
        for text in (first[1], ", role session, expires 2", "~/.config/rcuda/token", "600"):
            self.assertIn(text, said)
        self.assertNotIn(first[2], said)
        second, _ = self.create()
        self.assertEqual(first[3], second[3])  # one server
        self.assertNotEqual(first[2], second[2])
        rows = self.rows()
        self.assertEqual(set(rows), {"ID", first[1], second[1]})
        self.assertIn("my laptop", rows[first[1]])
        self.assertNotIn(first[2], str(rows))
        revoked = self.run_tool("revoke", first[1])
        self.assertEqual((revoked.returncode, revoked.stdout), (0, ""))
        self.assertIn(f"revoked token {first[1]} of ", revoked.stderr)
        self.assertIn("running sessions go on", revoked.stderr)
        self.assertEqual(set(self.rows()), {"ID", second[1]})

    def test_all_tokens_of_a_user_are_revoked(self):
        own, _ = self.create()
        other, _ = self.create("--role", "observer")
        last, _ = self.create()
        self.check_refused(self.run_tool("revoke"), "--user NAME")
        self.check_refused(self.run_tool("revoke", "--user", "ada"), "no token of the user ada", "nothing was revoked")
        revoked = self.run_tool("revoke", "--user", self.rows()[own[1]].split()[1])
        self.assertEqual(revoked.returncode, 0, revoked.stderr)
        for token in (own, last):
            self.assertIn(f"revoked token {token[1]} of ", revoked.stderr)
        self.assertEqual(set(self.rows()), {"ID", other[1]})

    def test_the_list_for_programs(self):
        self.assertEqual(json.loads(self.run_tool("list", "--json").stdout), [])
        made, _ = self.create("--label", 'a "label"', "--expires", "never", "--role", "session,operator")
        used, _ = self.create()
        with open(os.path.join(self.home, ".config/rcuda/tokens.used"), "w") as file:
            file.write(f"damaged\n{used[1]} 2026-01-02T03:04:05Z\n")
        os.chmod(file.name, 0o600)
        if self.identity:
            os.chown(file.name, NOBODY, NOBODY)
        first, second = json.loads(self.run_tool("list", "--json").stdout)
        self.assertRegex(first.pop("created"), r"^2\d\d\d-.*Z$")
        user = first.pop("user")
        self.assertEqual(first, dict(id=made[1], expires=None, expired=False, last_use=None, role="session,operator",
                                     label='a "label"'))
        self.assertEqual((second["user"], second["last_use"], second["role"]), (user, "2026-01-02T03:04:05Z", "session"))
        rows = self.rows()
        self.assertEqual([rows[token[1]].split()[4] for token in (made, used)], ["never", "2026-01-02T03:04:05Z"])

    def test_files_are_in_the_users_folder_and_only_the_user_reads_them(self):
        self.create()
        folder = os.path.join(self.home, ".config/rcuda")
        self.assertLessEqual({"tokens", "server.pem"}, set(os.listdir(folder)))
        for path in (folder, *(os.path.join(folder, name) for name in os.listdir(folder))):
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o077, 0, path)

    @unittest.skipIf(os.geteuid() != 0, "makes a network of its own, where no server can be")
    def test_a_machine_without_a_server_is_reported(self):
        made = subprocess.run(["unshare", "-n", self.program, "create", "--user", "root",
                               *(part for name in ("file", "certificate") for part in ("--" + name, os.path.join(self.folder, name)))],
                              capture_output=True, text=True, env=dict(os.environ, HOME=self.home))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("no rcuda-server is visible on this machine", made.stderr)
        self.assertIn("for a server of another machine, run rcuda-token create there", made.stderr)

    def test_files_may_be_elsewhere(self):
        files = [os.path.join(self.folder, name) for name in ("elsewhere/a", "elsewhere/b")]
        made, _ = self.create("--file", files[0], "--certificate", files[1])
        self.assertTrue(all(map(os.path.exists, files)))
        self.assertFalse(os.path.exists(self.home))
        self.assertIn(made[1], self.run_tool("list", "--file", files[0]).stdout)
        self.assertEqual(self.run_tool("revoke", made[1], "--file", files[0]).returncode, 0)
        self.assertEqual(self.run_tool("list", "--file", files[0]).stdout, "")

    def test_the_time_after_which_a_token_expires(self):
        for given, seconds, understood in ((None, 90 * 86400, "90d"), ("2m", 120, "2m"), ("90min", 5400, "90m"), ("12h", 43200, "12h"),
                                           ("30d", 30 * 86400, "30d"), ("8w", 56 * 86400, "56d"), ("30", 30, "30s"), ("1.5d", 129600, "36h")):
            made, said = self.create(*(["--expires", given] if given else []))
            self.assertIn(f"Z (in {understood})", said)
            expires = re.search(r"expires (\S+Z)", said)[1]
            created, listed = self.rows()[made[1]].split()[2:4]
            self.assertEqual(listed, expires)
            times = [calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) for text in (created, expires)]
            self.assertEqual(times[1] - times[0], seconds)
        self.assertIn("expires never", self.create("--expires", "never")[1])
        for bad in ("d", "0d", "-1d", "1y", "ad", "30d ", "99999999999999999999d", "999999999w"):
            refused = self.run_tool("create", "--expires=" + bad)
            self.check_refused(refused, "--expires", "30d", "never")
            self.assertEqual(refused.returncode, 2)

    def test_an_expired_token_is_listed_as_one(self):
        self.create("--label", "old")
        path = os.path.join(self.home, ".config/rcuda/tokens")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(re.sub(r"\S+Z old", "2001-01-01T00:00:00Z old", text))
        self.assertIn("(expired) old", "".join(self.rows().values()))

    def test_the_user_of_a_token(self):
        own = self.run_tool("list")
        self.assertEqual((own.returncode, own.stdout), (0, ""))
        self.check_refused(self.run_tool("create", "--user", "no-such-user"), 'no user "no-such-user"')
        # A user who is not root runs a server that acts for this user only.
        self.check_refused(self.run_tool("create", "--user", "root"), "only root", "cannot act for another",
                           "sudo rcuda-token create --user root")
        self.assertFalse(os.path.exists(self.home))
        made, _ = self.create("--user", str(NOBODY if self.identity else os.geteuid()))
        mine, _ = self.create()
        rows = self.rows()
        self.assertEqual(rows[made[1]].split()[1], rows[mine[1]].split()[1])

    def test_root_makes_tokens_for_others(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a token for another user")
        files = ("--file", os.path.join(self.folder, "tokens"), "--certificate", os.path.join(self.folder, "pem"))
        result = self.run_as({}, "create", "--user", "nobody", *files)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(" of nobody,", result.stderr)
        self.check_refused(self.run_as({}, "create", "--user", "no-such-user", *files), "no-such-user")
        self.check_refused(self.run_as({}, "create", *files), "--user ada", "--user root", "--role observer")
        result = self.run_as({}, "create", "--user", "root", *files)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_as({}, "create", "--role", "observer", *files)
        self.assertIn(" of observer, role observer,", result.stderr)

    # Uses the settings of root's server, in a mount namespace of the test.
    def test_a_token_that_gives_no_session_is_noted(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a token for another user")
        os.makedirs("/etc/rcuda", exist_ok=True)
        inside = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /etc/rcuda && echo "users = \\"$1\\"" > /etc/rcuda/server.toml '
                  '&& shift && exec "$@"', "sh")
        for users, role, noted in (("", "session", False), ("*", "session", False), ("root, nobody", "session", False),
                                   ("root", "session", True), ("daemon", "session,operator", True), ("root", "operator", False)):
            result = subprocess.run([*inside, users, self.program, "create", "--user", "nobody", "--role", role],
                                    capture_output=True, text=True, cwd="/")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(f'users = "{users}" in /etc/rcuda/server.toml does not name nobody, so the token gives no session: '
                             "add nobody to users" in result.stderr, noted, (users, role, result.stderr))
        # The note is printed only for the server's own file of tokens.
        for file, noted in (("/etc/rcuda/other", True), ("/etc/rcuda/third", False)):
            result = subprocess.run([*inside, 'root"\ntokens = "/etc/rcuda/other', self.program, "create", "--user", "nobody",
                                     "--file", file, "--certificate", "/etc/rcuda/pem"],
                                    capture_output=True, text=True, cwd="/")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("does not name nobody" in result.stderr, noted, result.stderr)

    def test_roles(self):
        made, said = self.create("--role", "operator,session", "--label", "both")
        self.assertIn("role session,operator,", said)
        self.assertRegex(self.rows()[made[1]], r"Z  never {17}session,operator  both$")
        made, said = self.create("--role", "observer")
        self.assertIn(" of observer, role observer,", said)
        for bad in ("root", "session,"):
            self.check_refused(self.run_tool("create", "--role=" + bad), "--role", "session, observer and operator")

    def test_a_file_that_others_can_read_is_refused(self):
        made, _ = self.create()
        path = os.path.join(self.home, ".config/rcuda/tokens")
        os.chmod(path, 0o644)
        for arguments in (["create"], ["list"], ["revoke", made[1]]):
            self.check_refused(self.run_tool(*arguments), "chmod 600 " + path)

    def test_what_is_not_there_cannot_be_revoked(self):
        self.check_refused(self.run_tool("revoke", "01234567"), "no tokens")
        made, _ = self.create()
        self.check_refused(self.run_tool("revoke", made[1], "no-token"), "no-token", "nothing was revoked")
        self.assertIn(made[1], self.rows())

    def test_a_line_begins_with_the_servers_name(self):
        host = os.uname().nodename
        for given, name in ((None, host + " "), ("node1", "node1 "), ("node1:9000", "node1:9000 "), ("*", "")):
            line = self.create(*(["--server", given] if given else []))[0][0]
            self.assertEqual(line[:line.index("rcuda1.")], name)
        for bad in ("node1:x", "two words", "[::1"):
            self.check_refused(self.run_tool("create", "--server", bad), bad, "[address]:port")

    def test_lines_are_added_to_the_users_file(self):
        one, two, other = (self.create("--server", name)[0][0] for name in ("node1", "node2:9000", "Node1"))
        path = os.path.join(self.home, ".config/rcuda/token")
        for lines, said, text in ((one + two, ("added the token for node1 in " + path, "added the token for node2:9000"), one + two),
                                  (other, ("replaced the token for Node1",), two + other)):
            result = self.run_tool("add", input=lines)
            self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
            for part in said:
                self.assertIn(part, result.stderr)
            with open(path) as file:
                self.assertEqual(file.read(), text)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)

    def test_lines_are_removed_from_the_users_file(self):
        lines = [self.create("--server", name)[0][0] for name in ("node1", "node1:9000", "*")]
        path = os.path.join(self.home, ".config/rcuda/token")
        self.check_refused(self.run_tool("remove", "node1"), "no file " + path)
        self.run_tool("add", input="".join(lines))
        self.check_refused(self.run_tool("remove", "node2"), "no token for node2", path + " has tokens for node1, node1:9000, every server")
        for name, said, text in (("NODE1", "NODE1", lines[1] + lines[2]), ("*", "every server", lines[1]), ("node1@9000", "node1@9000", "")):
            result = self.run_tool("remove", name)
            self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
            self.assertIn(f"removed the token for {said} from {path}", result.stderr)
            with open(path) as file:
                self.assertEqual(file.read(), text)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(self.run_tool("remove", "a b").returncode, 2)

    def test_where_and_under_which_name_a_line_is_added(self):
        token = self.create("--server", "node1")[0][0].split()[1]
        for options, variables, name, text in ((["--server", "10.0.0.7:9000"], {}, "a", f"10.0.0.7:9000 {token}\n"),
                                               (["--server", "*"], {}, "b", token + "\n"),
                                               ([], {"RCUDA_TOKEN_FILE": "c"}, "c", f"node1 {token}\n")):
            path = os.path.join(self.folder, "tokens", name)
            options = options if variables else [*options, "--file", path]
            result = self.run_tool("add", *options, input=f"\nnode1 {token}\n", **{key: path for key in variables})
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                self.assertEqual(file.read(), text)

    def test_what_is_no_line_is_not_added(self):
        path = os.path.join(self.home, ".config/rcuda/token")
        token = self.create()[0][0].split()[1]
        for lines, *said in (("", "no line to add"), ("node1 x\n", "line 1", "not a token"), ("a b " + token, "line 1", "one token per line"),
                             ("node1:x " + token, "line 1", "not a server")):
            self.check_refused(self.run_tool("add", input=lines), *said)
        self.assertFalse(os.path.exists(path))
        self.run_tool("add", input="node1 " + token)
        os.chmod(path, 0o644)
        self.check_refused(self.run_tool("add", input="node2 " + token), "chmod 600 " + path)

    def test_a_new_key_is_reported(self):
        result = self.run_tool("create")
        self.assertRegex(result.stderr, f"made a new key for the server in {self.home}/.config/rcuda/server.pem, fingerprint "
                                        + re.escape(result.stdout.strip().split(".")[-1]))
        self.assertNotIn("new key", self.run_tool("create").stderr)

    def test_help(self):
        result = self.run_tool("--help")
        self.assertEqual(result.returncode, 0)
        for text in ("create", "list", "revoke", "RCUDA_TOKEN_FILE", "/etc/rcuda", "Examples:"):
            self.assertIn(text, result.stdout)
        self.assertNotEqual(self.run_tool().returncode, 0)


if __name__ == "__main__":
    TOKEN = sys.argv.pop(1)
    unittest.main(verbosity=2)  # lists the skipped tests and the reasons
