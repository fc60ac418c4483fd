#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""Is training as fast as that of another version of the program?

    tests/bench/pair.py OLD [NEW]

Both train mllm-nano-train from the same seed, so their steps have the same work.  They take turns: while one makes a
few steps, the other one is stopped, so whatever else the machine does disturbs both alike.  A turn's ratio is that of
its steps' time, new to old; printed are the median of the turns' ratios and an interval that holds the true median 95
times of 100 (order statistics; nothing is assumed of the noise).

One process is measured by its CPU time, several ranks, who wait for one another, by the clock: that wants a quiet
machine.  Environment: STEPS of a turn (10), TURNS (100), RANKS ("1"), DISTTRAIN_TRACES for programs that are not
installed."""

import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = int(os.environ.get("STEPS", "10"))
TURNS = int(os.environ.get("TURNS", "100"))
WARM = 10  # steps in which kernels of new shapes are made
NANO = ["mllm-nano-train", "search.strategy=manual", "search.allow_analytical=true", "train.microbatch=1",
        "cluster={preset: local, gpus_per_node: 2}", "run.threads=1", "run.log_interval=1"]


def tree(root):
    """The process and all below it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    parents[int(name)] = int(f.read().rsplit(b")", 1)[1].split()[1])
            except OSError:
                pass  # it has ended
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


class Run:
    """One of the two, stopped except in its turns."""

    def __init__(self, program, ranks, folder, name):
        self.ranks, self.lines, self.at = ranks, 0, 0
        layout = ", ".join(f"{m}: {{pp: 1, dp: {ranks}}}" for m in ("encoder", "llm", "generator"))
        self.log = os.path.join(folder, f"{name}-log", "metrics.jsonl")
        self.err = open(os.path.join(folder, f"{name}-err"), "w+b")
        self.process = subprocess.Popen(
            [program, "train", "--ranks", str(ranks), "--from-scratch", "--no-runs", "--json", *NANO,
             f"plan={{colocated: true, {layout}}}", f"run.steps={WARM + STEPS * (TURNS + 2)}",
             f"run.log_dir={name}-log", f"run.checkpoint={{dir: {name}-saved, interval: 0}}"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=self.err)
        self.steps(WARM)
        self.all = tree(self.process.pid)
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for pid in self.all:
            os.kill(pid, number)

    def steps(self, until):
        """Until so many have been logged."""
        while self.lines < until:
            if self.process.poll() is not None:
                self.err.seek(0)
                sys.exit(self.err.read().decode(errors="replace") or "training has ended")
            try:
                with open(self.log, "rb") as f:
                    f.seek(self.at)
                    new = f.read()
                self.at += len(new)
                self.lines += new.count(b'"step_s":')
            except FileNotFoundError:
                pass
            time.sleep(0.002)

    def clock(self):
        if self.ranks > 1:
            return time.monotonic_ns()
        return time.clock_gettime_ns(~self.process.pid << 3 | 2)  # CPU time of a process: clock_getcpuclockid(3)

    def turn(self, k):
        before = self.clock()
        self.signal(signal.SIGCONT)
        self.steps(WARM + STEPS * (k + 1))
        self.signal(signal.SIGSTOP)
        return self.clock() - before

    def end(self):
        for number in (signal.SIGKILL, signal.SIGCONT):
            for pid in self.all:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        self.process.wait()


def measure(old, new, ranks, folder):
    runs = []
    try:
        for name, program in (("old", old), ("new", new)):
            runs.append(Run(program, ranks, folder, f"{name}{ranks}"))
        ratios = []
        for k in range(TURNS + 1):
            order = (0, 1) if k % 2 == 0 else (1, 0)
            took = {i: runs[i].turn(k) for i in order}
            if k > 0:  # in the first one the steps under way at the stop are not whole
                ratios.append(took[1] / took[0])
    finally:
        for r in runs:
            r.end()
    ratios.sort()
    reach = int(math.ceil(0.98 * math.sqrt(len(ratios))))
    middle = len(ratios) // 2
    low, high = ratios[max(0, middle - reach)], ratios[min(len(ratios) - 1, middle + reach)]
    print(f"bench: step_of_{ranks}_rank{'s' if ranks > 1 else ''} {statistics.median(ratios):.4f} of_the_old "
          f"({low:.4f} to {high:.4f}, {len(ratios)} turns of {STEPS} steps)", flush=True)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: pair.py OLD [NEW]")
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ.setdefault("DISTTRAIN_TRACES", os.path.join(here, "..", "..", "traces"))
    old, new = (os.path.abspath(p) for p in (sys.argv[1], (sys.argv[2:] or ["./disttrain"])[0]))
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run([new, "data", "pack", "--fashion-mnist", "train", "-o", "fashion-train"],
                                cwd=folder, capture_output=True, check=False)
        if packed.returncode:
            print("# no Fashion-MNIST (Debian: dataset-fashion-mnist)")
            sys.exit(77)
        for ranks in os.environ.get("RANKS", "1").split():
            measure(old, new, int(ranks), folder)


main()
