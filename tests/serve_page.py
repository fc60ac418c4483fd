# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# The page of `disttrain serve` as a user meets it, in a headless Chromium.  serve_page.py DISTTRAIN [FOLDER]: leaves
# its pictures in FOLDER.
import json
import re
import shlex
import subprocess
import sys
import tempfile

from browser import Browser

program = sys.argv[1]
folder = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()
JOB = "mllm-9b-96"
passed = failed = 0


def check(what, holds):
    global passed, failed
    if holds:
        passed += 1
    else:
        failed += 1
        print(f"FAIL: {what}")


def simulate(line):
    """What the command line of the page prints, as JSON."""
    words = shlex.split(line)
    assert words[:2] == ["disttrain", "simulate"], line
    out = subprocess.run([program, *words[1:], "--no-runs", "--json"], capture_output=True, check=True, text=True)
    return json.loads(out.stdout)


def row(b, label, column=1):
    """The text of a cell of the table of answers."""
    return b.value(f"""[...document.querySelectorAll('#results tbody tr')].find(
        r => r.firstChild.textContent === {json.dumps(label)})?.children[{column}].firstChild?.textContent""")


def command(b, side="a"):
    return b.value(f"document.querySelector('#side-{side} .command code').textContent")


def rest(b, side="a"):
    """Until the thorough answer to the newest setting is shown."""
    b.wait(f"""typeof sides !== 'undefined' && !!sides.{side}?.answer && sides.{side}.answer.turn === sides.{side}.turn &&
        sides.{side}.answer.effort === 'normal'""")


def is_shown(b, what, report, column=1):
    for label, want, unit in (("Iteration", report["iteration_s"], " s"), ("MFU", 100 * report["mfu"], " %"),
                              ("Throughput", report["tokens_per_s"], " tokens/s"),
                              ("Exposed communication", report["exposed_comm_s"], " s"),
                              ("Fullest GPU", report["memory_max_bytes"] / 2**30, " GiB")):
        text = (row(b, label, column) or "").replace(",", "")
        shown = float(text.split()[0]) if text and text[0].isdigit() else -1
        check(f"{what}: {label} is {text!r}, not {want}", abs(shown - want) <= 6e-4 * want and text.endswith(unit))
    check(f"{what}: GPUs used", row(b, "GPUs used", column) == str(report["gpus_used"]))


def slide(b, side, key, by):
    b.value(f"""(() => {{
        const s = document.querySelector('#side-{side} [data-key="{key}"] input[type=range]');
        s.value = Number(s.value) + {by};
        s.dispatchEvent(new Event('input'));
    }})()""")


def first_answer(b, url):
    b.open(url)
    rest(b)
    check("the title names the job", b.value("document.title") == f"{JOB}: DistTrain")
    check("the command line of the job", command(b) == f"disttrain simulate {JOB}")
    is_shown(b, "first answer", simulate(command(b)))
    explained = json.loads(subprocess.run([program, "plan", "--explain", "--json", JOB], capture_output=True, check=True).stdout)
    check("memory is shown against the planner's limit",
          b.value("sides.a.answer.capacity_bytes") == explained["explain"]["memory_limit_bytes"])
    check("a timeline is drawn", b.value("document.querySelectorAll('#pictures figure.a svg rect').length") > 20)
    check("it is said which answer it is", "Normal answer" in b.value("document.querySelector('#side-a .state').textContent"))
    b.screenshot(f"{folder}/one-light.png")


def sliders(b):
    b.value("""window.efforts = []; new MutationObserver(() => efforts.push(document.querySelector('#side-a').dataset.effort))
        .observe(document.querySelector('#side-a'), {attributes: true, attributeFilter: ['data-effort', 'data-turn']})""")
    for _ in range(6):
        slide(b, "a", "cluster.nodes", -1)
    slide(b, "a", "train.global_batch", 2)
    rest(b)
    efforts = b.value("efforts")
    check(f"quick answers come before the normal one: {efforts}", efforts[:1] == ["quick"] and efforts[-1] == "normal")
    check(f"answers in between are left out: {efforts}", len(efforts) <= 6)
    check(f"the keys are in the command: {command(b)}", "cluster.nodes=" in command(b) and "train.global_batch=" in command(b))
    is_shown(b, "after sliding", simulate(command(b)))
    b.value("document.querySelector('#side-a [data-key=\"cluster.nodes\"] .undo').click()")
    check("a key goes back to the job's value", "cluster.nodes" not in command(b))


def other_keys(b):
    b.value("""(() => {
        const i = document.querySelector('#side-a .key');
        i.value = 'train.recompute={llm: full}';
        document.querySelector('#side-a .other').requestSubmit();
        i.value = 'simulate.jitter=0.05';
        document.querySelector('#side-a .other').requestSubmit();
    })()""")
    rest(b)
    check(f"a value with blanks is quoted: {command(b)}", "'train.recompute={llm: full}'" in command(b))
    is_shown(b, "with other keys", simulate(command(b)))
    check("every key that may be set is offered", b.value("document.querySelectorAll('#keys option').length") > 80)


def two_sides(b):
    b.value("document.querySelector('#side-a .reset').click()")
    b.value("document.querySelector('#compare').click()")
    b.value("""(() => {
        const s = document.querySelector('#side-b [data-key="search.strategy"] select');
        s.value = 'megatron-lm';
        s.dispatchEvent(new Event('change'));
        document.querySelector('#side-b [data-key="train.frozen"] input[value=encoder]').click();
    })()""")
    rest(b, "a")
    rest(b, "b")
    check(f"B's command: {command(b, 'b')}", command(b, "b") ==
          f"disttrain simulate {JOB} search.strategy=megatron-lm 'train.frozen=[encoder]'")
    a, other = simulate(command(b)), simulate(command(b, "b"))
    is_shown(b, "A", a)
    is_shown(b, "B", other, 2)
    text = row(b, "Iteration", 3) or ""
    want = other["iteration_s"] - a["iteration_s"]
    shown = float(text.split()[0].replace("−", "-").replace("+", "").replace(",", "") if text else "nan")
    check(f"B − A is {text!r}, not {want}", abs(shown - want) <= 6e-3 * abs(want))
    b.screenshot(f"{folder}/two-light.png")
    b.dark(True)
    b.screenshot(f"{folder}/two-dark.png")
    b.dark(False)
    return b.value("location.href")


def files(b):
    """What the links below B's command give: the report, and a plan that gives the same iteration."""
    want = simulate(command(b, "b"))
    for name, text in ((n, b.value(f"fetch(document.querySelector('#side-b .export .{n}').href).then(r => r.text())"))
                       for n in ("plan", "result", "report")):
        if name == "report":
            check("the report has the same iteration", re.search(r'<data value="([^"]*)" data-key="iteration_s"', text) and
                  abs(float(re.search(r'<data value="([^"]*)" data-key="iteration_s"', text)[1]) / want["iteration_s"] - 1) < 1e-8)
            continue
        with open(f"{folder}/{name}.json", "w") as f:
            f.write(text)
        if name == "plan":
            again = simulate(f"disttrain simulate {JOB} --plan {folder}/plan.json")
            check("plan.json gives the same iteration", again["iteration_s"] == want["iteration_s"])
        else:
            got = json.loads(text)
            check("simulate.json is what the command prints", {**got, "wall_s": 0} == {**want, "wall_s": 0})


def report(b, link):
    b.open(link)
    b.wait("document.querySelectorAll('svg').length > 2 && document.readyState === 'complete'")
    b.screenshot(f"{folder}/report.png")


def refusals(b):
    b.value("""(() => {
        const i = document.querySelector('#side-a .key');
        i.value = 'profile=/etc/passwd';
        document.querySelector('#side-a .other').requestSubmit();
    })()""")
    b.wait("document.querySelector('#side-a .state').classList.contains('bad')")
    check("a file is refused, in words", "names a file" in b.value("document.querySelector('#side-a .state').textContent"))
    check("then there is no number", row(b, "Iteration") == "–")
    b.value("document.querySelector('#side-a .reset').click()")
    b.value("""(() => {
        const i = document.querySelector('#side-a .key');
        i.value = 'cluster.memory=5 GB';
        document.querySelector('#side-a .other').requestSubmit();
    })()""")
    b.wait("/no plan fits/.test(document.querySelector('#side-a .state').textContent)")
    b.value("document.querySelector('#side-a .reset').click()")
    rest(b)


def narrow(b):
    b.call("Emulation.setDeviceMetricsOverride", width=420, height=800, deviceScaleFactor=1, mobile=False)
    check("nothing sticks out of a narrow window", b.value("document.documentElement.scrollWidth") <= 420)
    b.screenshot(f"{folder}/narrow.png")


server = subprocess.Popen([program, "serve", JOB, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
try:
    url = server.stdout.readline().strip()
    with Browser() as b:
        first_answer(b, url)
        sliders(b)
        other_keys(b)
        link = two_sides(b)
        files(b)
        refusals(b)
        # a 403 is what the browser itself reports of the refusal above; the page reports nothing
        check(f"the console is silent: {b.console}", all("status of 40" in line for line in b.console))
        check("nothing is asked of anybody else", b.requests and all(r.startswith(url) or r.startswith("data:") for r in b.requests))
        narrow(b)
    with Browser() as b:
        report(b, f"{url}report.html?set=cluster.nodes%3D6")
        check(f"the report's console is silent: {b.console}", not b.console)
    with Browser() as b:  # the address alone says it all
        b.open(link)
        rest(b, "a")
        rest(b, "b")
        check("a bookmark brings both settings back", "search.strategy=megatron-lm" in command(b, "b") and
              command(b) == f"disttrain simulate {JOB}")
        check("and their answers", row(b, "Iteration", 3) not in (None, "", "same"))
finally:
    server.terminate()
    check("the server ends by SIGTERM", server.wait(20) == 0)

print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0 or passed < 20)
