#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""Steps of training of the same shapes as the jobs beside this file, by PyTorch: what a card's owner would compare with.

usage: torch_steps.py [--small]

bf16 autocast, masters and AdamW (fused) in fp32, attention by scaled_dot_product_attention; the Llama slice compiled, the others
eager. One line each: milliseconds of the fastest of several steps. Exit status 77 where there is no torch or no card; --small:
small shapes, on whatever there is."""

import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    print("SKIP: there is no torch")
    sys.exit(77)

SMALL = "--small" in sys.argv[1:]
if not SMALL and not torch.cuda.is_available():
    print("SKIP: torch finds no card")
    sys.exit(77)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LlamaLayer(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x, angle):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = turn(q, angle), turn(k, angle)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turn(x, angle):
    a, b = x.chunk(2, -1)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class Llama(nn.Module):
    def __init__(self, layers, width, ffn, heads, vocab, length):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaLayer(width, ffn, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        each = 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("angle", torch.arange(length)[:, None] * each[None])

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x, self.angle)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class VitLayer(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, layers, width, ffn, heads, patch, positions):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(positions, width))
        self.layers = nn.ModuleList(VitLayer(width, ffn, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).float().square().mean()


class Res(nn.Module):
    def __init__(self, a, b, time_width):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, a), nn.Conv2d(a, b, 3, padding=1)
        self.time = nn.Linear(time_width, b)
        self.norm2, self.conv2 = nn.GroupNorm(32, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attend(nn.Module):
    """Attention to the image itself, then to the words, then an MLP with a gate."""

    def __init__(self, width, head, context):
        super().__init__()
        self.head = head
        self.norm, self.first, self.last = nn.GroupNorm(32, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.q = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.kv = nn.ModuleList(nn.Linear(w, 2 * width, bias=False) for w in (width, context))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image, words):
        n, width, h, w = image.shape
        x = self.first(self.norm(image).flatten(2).transpose(1, 2))
        for i in range(2):
            y = self.norms[i](x)
            k, v = self.kv[i](y if i == 0 else words).chunk(2, -1)
            q, k, v = (t.view(n, t.shape[1], -1, self.head).transpose(1, 2) for t in (self.q[i](y), k, v))
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, width))
        up, gate = self.up(self.norms[2](x)).chunk(2, -1)
        x = self.last(x + self.down(up * F.gelu(gate)))
        return image + x.transpose(1, 2).view(n, width, h, w)


class UNet(nn.Module):
    def __init__(self, channels, attends, head, context, time_width, blocks=2):
        super().__init__()
        self.first = nn.Conv2d(4, channels[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(channels[0], time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.down, self.up, skips, now = nn.ModuleList(), nn.ModuleList(), [channels[0]], channels[0]
        for level, c in enumerate(channels):
            for _ in range(blocks):
                self.down.append(nn.ModuleList([Res(now, c, time_width), Attend(c, head, context) if attends[level] else None]))
                now = c
                skips.append(now)
            if level + 1 < len(channels):
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = nn.ModuleList([Res(now, now, time_width), Attend(now, head, context), Res(now, now, time_width)])
        for level, c in reversed(list(enumerate(channels))):
            for _ in range(blocks + 1):
                self.up.append(nn.ModuleList([Res(now + skips.pop(), c, time_width), Attend(c, head, context) if attends[level] else None]))
                now = c
            if level > 0:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, now), nn.Conv2d(now, 4, 3, padding=1)

    def forward(self, x, t, words, noise):
        t, x = self.time(t), self.first(x)
        kept = [x]
        for block in self.down:
            if isinstance(block, nn.Conv2d):
                x = block(x)
            else:
                x = block[0](x, t)
                x = block[1](x, words) if block[1] is not None else x
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, t), words), t)
        for block in self.up:
            if isinstance(block, nn.Conv2d):
                x = block(F.interpolate(x, scale_factor=2))
            else:
                x = block[0](torch.cat((x, kept.pop()), 1), t)
                x = block[1](x, words) if block[1] is not None else x
        return F.mse_loss(self.last(F.silu(self.norm(x))).float(), noise)


def fastest_ms(model, inputs, steps, warm_up):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    best = float("inf")
    for i in range(warm_up + steps):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        if i >= warm_up:
            best = min(best, time.perf_counter() - begin)
    return 1e3 * best


def main():
    torch.manual_seed(1)
    steps, warm_up = (1, 1) if SMALL else (10, 5)
    n, length, shape = (2, 32, (1, 32, 48, 2, 97)) if SMALL else (2, 4096, (4, 4096, 11008, 32, 32000))
    llama = Llama(*shape, length).to(DEVICE)
    ids = torch.randint(shape[-1], (n, length), device=DEVICE)
    print(f"torch llama: {fastest_ms(llama if SMALL else torch.compile(llama), (ids,), steps, warm_up):.1f} ms a step", flush=True)
    del llama
    n, side, shape = (2, 28, (1, 32, 64, 2, 14, 4)) if SMALL else (32, 224, (32, 1280, 5120, 16, 14, 256))
    vit = Vit(*shape).to(DEVICE)
    pixels = torch.randn(n, 3, side, side, device=DEVICE)
    print(f"torch vit: {fastest_ms(vit, (pixels,), steps, warm_up):.1f} ms a step", flush=True)
    del vit
    levels = [True, True, True, False]
    shape = ([32, 32, 32, 32], levels, 16, 16, 32) if SMALL else ([320, 640, 1280, 1280], levels, 64, 1024, 1280)
    n, side = (1, 8) if SMALL else (8, 64)
    unet = UNet(*shape).to(DEVICE).to(memory_format=torch.channels_last)
    x, noise = (torch.randn(n, 4, side, side, device=DEVICE) for _ in range(2))
    words = torch.randn(n, 77, shape[3], device=DEVICE)
    t = torch.randn(n, shape[0][0], device=DEVICE)
    print(f"torch unet: {fastest_ms(unet, (x, t, words, noise), steps, warm_up):.1f} ms a step", flush=True)


if __name__ == "__main__":
    main()
