#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Pages in a browser: they render without an error on its console, their script zooms, they fit a telephone.
. "${srcdir:-.}/tests/shell.sh"
browser=
for b in chromium chromium-browser google-chrome; do
    command -v $b >/dev/null && browser=$b && break
done
if [ -z "$browser" ]; then echo "no Chromium here"; exit 77; fi
open() { # OUT OPTION... : what it prints goes to OUT, its console to err
    to=$1; shift
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/profile" \
        --enable-logging=stderr --v=0 --hide-scrollbars --virtual-time-budget=3000 "$@" >"$to" 2>err
}
printf '<p id="here">here</p><script>console.log("heard")</script>' >probe.html
open probe.out --dump-dom "file://$tmp/probe.html"
if ! grep -q 'id="here"' probe.out || ! grep -q heard err; then echo "Chromium does not work here"; head -5 err; exit 77; fi

expect 0 "" "$DISTTRAIN" simulate mllm-72b-1296
expect 0 "" "$DISTTRAIN" simulate --json mllm-nano-local
iteration=$(sed -n 's/^ *"iteration_s": \([^,]*\),*$/\1/p' out)
expect 0 "" "$DISTTRAIN" report 1 --kept-only -o big.html
expect 0 "" "$DISTTRAIN" report 2 -o page.html
expect 0 "" "$DISTTRAIN" report 1 2 --kept-only -o two.html

for page in big page two; do
    open $page.dom --dump-dom "file://$tmp/$page.html"
    check "$page is there" "grep -q 'Where the time goes' $page.dom"
    check "the script of $page ran" "grep -q 'aria-label=\"zoom in\"' $page.dom"
    grep 'CONSOLE' err >out
    check "nothing on the console of $page" '[ ! -s out ]'
done

# numbers as the browser has them, beside the JSON
sed -n 's/.*<data value="\([^"]*\)" data-key="iteration_s".*/\1/p' page.dom | head -n 1 >seen
check "the iteration is the JSON's" "awk -v b=$iteration '{ d = \$1 - b; exit !(d * d <= 1e-18 * b * b) }' seen"

# the same page with a script that presses the buttons, and tells what came of it
sed 's|^</body>|<script>\
var f = document.querySelector("figure.timeline"), s = f.querySelector("svg.dt-time"), all = s.getAttribute("viewBox");\
f.querySelector("button[aria-label=\\"zoom in\\"]").click();\
var half = s.getAttribute("viewBox");\
f.querySelector("button[aria-label=later]").click();\
var later = s.getAttribute("viewBox"), ticks = f.querySelectorAll("g.dt-ticks text").length;\
f.querySelector("button[aria-label=\\"show all of the iteration\\"]").click();\
s.querySelector("rect title").parentNode.dispatchEvent(new Event("pointerover", {bubbles: true}));\
document.title = [all.split(" ")[2] / half.split(" ")[2], later.split(" ")[0] > half.split(" ")[0], ticks > 3,\
  s.getAttribute("viewBox") == all, /ms from/.test(f.querySelector(".hover").textContent),\
  document.documentElement.scrollWidth].join(" ");\
</script></body>|' page.html >pressed.html
open pressed.dom --window-size=1300,900 --dump-dom "file://$tmp/pressed.html"
sed -n 's/.*<title>\([^<]*\)<.*/\1/p' pressed.dom | head -n 1 >out
check "zoom halves, moves, tells and goes back" 'grep -q "^2 true true true true" out'

# on a telephone nothing but boxes and pictures scrolls sideways
open pressed.dom --window-size=500,900 --dump-dom "file://$tmp/pressed.html"
sed -n 's/.*<title>\([^<]*\)<.*/\1/p' pressed.dom | head -n 1 >out
check "the page is as narrow as its window" 'grep -q " 500$" out'

# light, dark, printed: something is drawn
open /dev/null --window-size=1300,3000 --screenshot="$tmp/light.png" "file://$tmp/page.html"
open /dev/null --window-size=1300,3000 --blink-settings=preferredColorScheme=0 --screenshot="$tmp/dark.png" "file://$tmp/page.html"
open /dev/null --no-pdf-header-footer --print-to-pdf="$tmp/page.pdf" "file://$tmp/page.html"
check "light is a picture" '[ "$(wc -c <light.png)" -gt 100000 ]'
check "dark is another one" '[ "$(wc -c <dark.png)" -gt 100000 ] && ! cmp -s light.png dark.png'
check "it prints" 'head -c 5 page.pdf | grep -q "%PDF-" && [ "$(wc -c <page.pdf)" -gt 30000 ]'
totals
