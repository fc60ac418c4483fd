# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Draws the losses of a training run:  awk -f learning-curve.awk log/metrics.jsonl >learning-curve.svg
# Thin: every step; thick: mean of the 25 steps around it.  The vertical axis is logarithmic.
function value(name,    s) {
    if (!match($0, "\"" name "\":[-+.eE0-9]+"))
        return -1
    s = substr($0, RSTART, RLENGTH)
    sub(/.*:/, "", s)
    return s + 0
}
function x(step) { return 60 + 620 * step / last }
function y(loss) { return 20 + 300 * (log(high) - log(loss)) / (log(high) - log(low)) }
function curve(kind, colour,    i, k, n, sum, thin, thick) {
    for (i = 1; i <= steps; i++) {
        if (loss[kind, i] <= 0)
            continue
        thin = thin sprintf(" %.1f,%.1f", x(at[i]), y(loss[kind, i]))
        n = sum = 0
        for (k = i - 12; k <= i + 12; k++)
            if (loss[kind, k] > 0) {
                sum += loss[kind, k]
                n++
            }
        thick = thick sprintf(" %.1f,%.1f", x(at[i]), y(sum / n))
    }
    printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"0.5\" opacity=\"0.4\"/>\n", thin, colour
    printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", thick, colour
}
{
    steps++
    at[steps] = last = value("step")
    loss["text", steps] = value("loss_text")
    loss["image", steps] = value("loss_image")
    for (k = 1; k <= 2; k++) {
        v = loss[k == 1 ? "text" : "image", steps]
        if (v > 0 && (high == 0 || v > high))
            high = v
        if (v > 0 && (low == 0 || v < low))
            low = v
    }
}
END {
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 370\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"700\" height=\"370\" fill=\"white\"/>"
    for (v = 0.001; v < 100; v *= 10)
        for (k = 1; k <= 5; k += k < 2 ? 1 : 3)
            if (v * k >= low && v * k <= high) {
                printf "<path d=\"M60 %.1fH680\" stroke=\"#ccc\"/>", y(v * k)
                printf "<text x=\"54\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", y(v * k) + 4, v * k
            }
    for (k = 0; k <= 5; k++)
        printf "<text x=\"%.1f\" y=\"338\" text-anchor=\"middle\">%d</text>\n", x(last * k / 5), last * k / 5
    print "<text x=\"370\" y=\"358\" text-anchor=\"middle\">step</text>"
    curve("text", "#1f77b4")
    curve("image", "#d62728")
    print "<text x=\"670\" y=\"40\" text-anchor=\"end\" fill=\"#1f77b4\">text: nats per target token</text>"
    print "<text x=\"670\" y=\"58\" text-anchor=\"end\" fill=\"#d62728\">image: mean squared error of the noise</text>"
    print "</svg>"
}
