"""A server behind a network that has a delay and a rate, for the programs of this folder."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import Server  # noqa: E402


class Network:
    """Starts a server, and a proxy (proxy.cpp) for each requested network."""

    def __init__(self, build, driver, devices=(0,)):
        self.build, self.devices, self.proxies = build, devices, []
        self.server = Server(build, driver=driver, devices=",".join(map(str, devices)), options=["--insecure", "--pool", "2"])

    def environment(self, round_trip_us=0, gigabits=0):
        """The environment of a client whose session goes through a proxy. `gigabits` is per second; 0: no limit."""
        proxy = subprocess.Popen([os.path.join(self.build, "bench/network/proxy"), self.server.port,
                                  str(round_trip_us), str(gigabits)], stdout=subprocess.PIPE, text=True)
        self.proxies.append(proxy)
        port = proxy.stdout.readline().strip()
        pool = ",".join(f"127.0.0.1@{port}:{device}" for device in self.devices)
        return dict(os.environ, RCUDA_DEVICES=pool, RCUDA_TRANSPORT="tcp", RCUDA_SECURITY="none")

    def stop(self):
        for proxy in self.proxies:
            proxy.kill()
            proxy.wait()
            proxy.stdout.close()
        self.server.stop()
