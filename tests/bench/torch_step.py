# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""A training step of the GPT-2 124M shape in PyTorch, as bench_step's gpt2_124m makes it: batch 4,
1,024 tokens, forward, backward, clipping, AdamW; fp32, and bf16 by autocast where the CPU has it.
Prints lines of `make bench`.  Argument: threads (default: all of this process)."""

import os
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCAB = 4, 1024, 768, 12, 12, 50257
ROUNDS = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (
            y.view(b, t, HEADS, WIDTH // HEADS).transpose(1, 2)
            for y in self.qkv(self.n1(x)).chunk(3, -1)
        )
        s = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
        p = torch.softmax(s.masked_fill(mask, float("-inf")), -1).to(v.dtype)
        x = x + self.o((p @ v).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.mask)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, VOCAB), labels.view(-1))


def step(model, optimizer, ids, labels, bf16):
    begin = time.monotonic(), time.process_time()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert loss.item() < 100
    return time.monotonic() - begin[0], time.process_time() - begin[1]


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    ids = torch.randint(VOCAB, (BATCH, LENGTH))
    labels = ids.roll(-1, 1)
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        fast = "avx512_bf16" in f.read()
    for bf16 in (True, False) if fast else (False,):
        model = Gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step(model, optimizer, ids, labels, bf16)  # warms up
        took = [step(model, optimizer, ids, labels, bf16) for _ in range(ROUNDS)]
        wall, cpu = (statistics.median(t[i] for t in took) for i in (0, 1))
        name = "step_gpt2_124m_torch_" + ("bf16" if bf16 else "f32")
        print(f"bench: {name} {BATCH * LENGTH / wall:.1f} tokens/s")
        print(f"bench: {name}_by_cpu_time {BATCH * LENGTH * threads / cpu:.1f} tokens/s")
        print(
            f"bench: {name}_process "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024e-9:.2f} GB",
            flush=True,
        )
        del model, optimizer


if __name__ == "__main__":
    main()
