# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# A headless Chromium by its debugging pipe (file descriptors 3 and 4, JSON messages ended by NUL): no library needed.
#   with Browser() as b: b.open(url); b.value("document.title"); b.screenshot("a.png"); b.console
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time


def find():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    def __init__(self, width=1400, height=1000, dark=False):
        self.home = tempfile.mkdtemp(prefix="browser-")
        to_r, self.to = os.pipe()
        self.back, back_w = os.pipe()
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
                   f"--window-size={width},{height}", f"--user-data-dir={self.home}", "--remote-debugging-pipe",
                   "about:blank"]

        def pipes():  # away from 3 and 4 before they become those
            away = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_r, back_w)]
            os.dup2(away[0], 3)
            os.dup2(away[1], 4)

        self.process = subprocess.Popen(command, preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (to_r, back_w):
            os.close(fd)
        self.text = b""
        self.number = 0
        self.console = []  # errors and warnings of the page, and requests that failed
        self.requests = []  # addresses asked for
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.dark(dark)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        shutil.rmtree(self.home, ignore_errors=True)

    def _message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.text:
            if not select.select([self.back], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser says nothing within {seconds} s")
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self.text += piece
        one, self.text = self.text.split(b"\0", 1)
        return json.loads(one)

    def _note(self, m):
        what, p = m.get("method"), m.get("params", {})
        if what == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.console.append(d.get("exception", {}).get("description") or d["text"])
        elif what == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif what == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.console.append(p["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])

    def call(self, method, seconds=120, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            m = self._message(seconds)
            if m.get("id") == self.number:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']}")
                return m["result"]
            self._note(m)

    def dark(self, on):
        value = "dark" if on else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, expression):
        """What the expression, a promise too, is in the page; must be JSON."""
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{expression}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait(self, expression, seconds=120):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"still not so after {seconds} s: {expression}")
            time.sleep(0.05)

    def screenshot(self, path, whole=True):
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1},
                    "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


if __name__ == "__main__":  # browser.py URL PICTURE [dark]: a picture of a page; what its console says, on stderr
    with Browser(dark="dark" in sys.argv[3:]) as browser:
        browser.open(sys.argv[1])
        browser.wait("document.readyState === 'complete'")
        time.sleep(1)
        browser.screenshot(sys.argv[2])
        print("\n".join(browser.console), file=sys.stderr)
        sys.exit(bool(browser.console))
