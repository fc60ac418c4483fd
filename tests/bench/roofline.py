#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""Estimates of the kernels of cards, to be looked at before there is a card.

usage: roofline.py PROGRAM MODULE [PTXAS...]

PROGRAM (tests/bench/roofline) calls kernels at the sizes of real models; MODULE is the module of cards built for a CPU,
which tells its launches. PTXAS: what `nvcc -Xptxas -v` says (make build/ptxas-80.txt), for registers and static shared
memory of each kernel. Writes a page of Markdown to standard output."""

import os
import re
import subprocess
import sys

# published: NVIDIA A100 (80 GB SXM) and H100 (SXM) data sheets; CUDA C programming guide, table of compute capabilities
CARDS = {
    "80": {"name": "A100", "processors": 108, "bytes": 2.039e12, "tensor": 312e12, "fp32": 19.5e12, "shared": 164},
    "90": {"name": "H100", "processors": 132, "bytes": 3.35e12, "tensor": 989e12, "fp32": 67e12, "shared": 228},
}
THREADS, BLOCKS, REGISTERS = 2048, 32, 65536  # of a processor, both cards
LIBRARY = 0.8  # of the tensor cores' peak in large products: 798 of 989 TFLOP/s were measured at 8192^3 on an H100
LAUNCH_S = 2e-6  # assumed: from the end of a kernel to the begin of the next one of a stream
ATTENTION, WARPS = 0.6, 8  # assumed: of that peak in our attention, with two warps for each quarter of a processor; else less
LATENCY_S = 600e-9  # assumed: of memory under load
# Accesses of 16 bytes that a thread has under way before it needs the first, as the loops of these kernels are unrolled; of others
# they were not counted, and are 1.
UNDER_WAY = {"forward_kernel": 4, "backward_kernel": 6, "stats_kernel": 8, "grad_sums": 8, "grad_kernel": 4, "chunk_sums": 8,
             "add_many": 4}


def read_ptxas(paths):
    """{(arch, symbol): (registers, shared bytes, spilled bytes)}"""
    found, key, spilled = {}, None, 0
    for path in paths:
        for line in open(path, encoding="utf-8"):
            m = re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)'", line)
            if m:
                key, spilled = (m[2], m[1]), 0
                continue
            m = re.search(r"(\d+) bytes spill stores", line)
            if m:
                spilled = int(m[1])
            m = re.search(r"Used (\d+) registers", line)
            if m and key:
                shared = re.search(r"(\d+) bytes smem", line)
                found[key] = (int(m[1]), int(shared[1]) if shared else 0, spilled)
                key = None
    return found


def read_symbols(module):
    """{offset: symbol}"""
    out = subprocess.run(["nm", module], check=True, capture_output=True, text=True).stdout
    symbols = {}
    for line in out.splitlines():
        part = line.split()
        if len(part) == 3 and part[1] in "tTwW":
            symbols[int(part[0], 16)] = part[2]
    return symbols


def run(program, module, processors):
    """[(name, sizes, bytes, flops, unit, [launch or product])]"""
    env = dict(os.environ, CUCPU_DRY="1", CUCPU_PROCESSORS=str(processors), CUCPU_MEMORY_MIB="130000",
               DISTTRAIN_MODULES=os.path.dirname(module), OMP_NUM_THREADS="1")
    out = subprocess.run([program], check=True, capture_output=True, text=True, env=env).stdout
    calls = []
    for line in out.splitlines():
        f = line.split("\t")
        if f[0] == "call":
            calls.append((f[1], f[2], float(f[3]), float(f[4]), f[5], []))
        elif calls:
            calls[-1][5].append(f)
    return calls


def occupancy(card, threads, registers, shared):
    """Blocks of a processor at once."""
    warps = (threads + 31) // 32
    by_registers = REGISTERS // (warps * -(-registers * 32 // 256) * 256) if registers else BLOCKS
    by_shared = card["shared"] * 1024 // (-(-shared // 128) * 128 + 1024)
    return max(0, min(BLOCKS, THREADS // threads, by_registers, by_shared))


def product_s(card, f):
    m, n, k = (int(x) for x in f[1:4])
    size = {"bf16": 2, "fp32": 4}
    moved = size[f[4]] * (m * k + k * n) + size[f[5]] * m * n * (2 if f[6] == "1" else 1)
    return max(2.0 * m * n * k / (LIBRARY * card["tensor"]), moved / card["bytes"]), moved


def besides(name, f):
    """Bytes that our kernels move for a product: the patches of a convolution, which are written or read once more than the
    product does; the logits, which are read, and the gradient that takes their place."""
    m, n, k = (int(x) for x in f[1:4])
    if name.startswith("conv"):
        return 2 * max(m * n, m * k, n * k)
    return 10 * m * n if name == "xent" and f[5] == "fp32" and f[6] == "0" else 0


def describe(card, arch, f, symbols, ptxas):
    """A launch: its words for the table; the share of the card's bandwidth that its threads can ask for, of its
    processors that have a block, and of the warps that keep their tensor cores at work."""
    name, offset, grid, threads, shared = f[1].strip("()"), int(f[2], 16), int(f[3]), int(f[4]), int(f[5])
    known = ptxas.get((arch, symbols.get(offset, "?")))
    registers, static, spilled = known if known else (0, 0, 0)
    blocks = occupancy(card, threads, registers, shared + static)
    busy = min(card["processors"], grid)
    resident = min(blocks * card["processors"], grid) * threads
    share = min(1.0, resident * 16 * UNDER_WAY.get(name.split("<")[0], 1) / (card["bytes"] * LATENCY_S))
    text = "%s %d x %d" % (name.split("<")[0], grid, threads)
    text += ", %s registers" % (registers if known else "?")
    if shared + static:
        text += ", %.0f KiB" % ((shared + static) / 1024) if shared + static >= 1024 else ", %d B" % (shared + static)
    if spilled:
        text += ", **%d B spilled**" % spilled
    text += ", %d on a processor (%.0f %%)" % (blocks, 100.0 * blocks * threads / THREADS)
    return text, share, busy / card["processors"], min(1.0, blocks * threads / 32 / WARPS)


def estimate(card, arch, call, symbols, ptxas):
    name, sizes, least, flops, unit, work = call
    launches = [f for f in work if f[0] == "launch"]
    products = [f for f in work if f[0] == "product"]
    bound = max(least / card["bytes"], flops / card[unit])
    texts, share, filled, warps = [], 1.0, 1.0, 1.0
    for i, f in enumerate(launches):
        text, s, b, w = describe(card, arch, f, symbols, ptxas)
        warps = min(warps, w)
        if text not in texts:
            texts.append(text)
        share, filled = (s, b) if i == 0 else (max(share, s), max(filled, b))
    took = LAUNCH_S * len(work)
    if products:
        took += sum(product_s(card, f)[0] for f in products)
        texts = ["%d products of %s" % (len(products), " x ".join(products[0][1:4]))] + texts
        took += sum(besides(name, f) for f in products) / card["bytes"]
    elif unit == "tensor":
        took += max(least / (card["bytes"] * share), flops / (ATTENTION * warps * card["tensor"] * filled))
    else:
        took += max(least / (card["bytes"] * share), flops / (card["fp32"] * filled))
    return bound, took, texts, len(work)


def number(x):
    return "%.3g" % x if x < 1000 else "%.0f" % x


def main():
    program, module, ptxas = sys.argv[1], sys.argv[2], read_ptxas(sys.argv[3:])
    symbols = read_symbols(module)
    print("<!-- made by tests/bench/roofline.py: make roofline -->\n# Estimates of kernels\n")
    print("Nothing here was measured on a card. Bytes: what a call must read and write at least, each tensor once. Bound: those at the\n"
          "card's bandwidth, or its FLOP at the card's peak, whichever takes longer. Estimate: with %.0f %% of the tensor cores' peak in the\n"
          "library's products and %.0f %% in our attention, less where fewer than %d warps fit on a processor; %.0f us for each launch; and\n"
          "only as much bandwidth as the threads that fit onto the card at once ask for, with one access of 16 bytes each under way for\n"
          "%.0f ns, or as many as its kernel's loops are unrolled for (%s). All of this is assumed. Launches: blocks x threads, and from ptxas registers, shared memory, and blocks that fit on a processor (share of\n"
          "its threads).\n"
          % (100 * LIBRARY, 100 * ATTENTION, WARPS, LAUNCH_S * 1e6, LATENCY_S * 1e9,
             ", ".join("%s %d" % k for k in sorted(UNDER_WAY.items()))))
    for arch, card in CARDS.items():
        print("## %s: %.2f TB/s, %.0f TFLOP/s bf16, %.1f fp32, %d processors\n"
              % (card["name"], card["bytes"] / 1e12, card["tensor"] / 1e12, card["fp32"] / 1e12, card["processors"]))
        print("| call | sizes | MiB | GFLOP | bound [us] | estimate [us] | bound / estimate | launches |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for call in run(program, module, card["processors"]):
            bound, took, texts, n = estimate(card, arch, call, symbols, ptxas)
            print("| %s | %s | %s | %s | %s | %s | %.0f %% | %d: %s |"
                  % (call[0], call[1], number(call[2] / 2**20), number(call[3] / 1e9), number(bound * 1e6),
                     number(took * 1e6), 100 * bound / took, n, "; ".join(texts)))
        print()


main()
