#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""Compares a module with PyTorch: values and, by automatic differentiation, every gradient.

Reads what modules_dump wrote; the architectures are stated once more with torch's own operations."""
import math
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
TOLERANCE = 1e-4
CONV, RESNET, SPATIAL = 6, 7, 8

blocks, data = [], {}
for line in open(sys.argv[2]):
    name, numbers = line.split(":", 1)
    values = [float(x) for x in numbers.split()]
    if name == "block":
        keys = "kind hidden ffn heads kv_heads head_dim depth c_in c_out stride context_len".split()
        blocks.append(dict(zip(keys, map(int, values))))
    else:
        data[name] = torch.tensor(values)
params = {n: data[n].requires_grad_() for n in data if "grad " + n in data}
data["in"].requires_grad_()
kind = sys.argv[1]


def linear(x, name):
    w = params[name + ".weight"].view(-1, x.shape[-1])
    return F.linear(x, w, params.get(name + ".bias"))


def conv1d(x, name):
    return x @ params[name + ".weight"].view(x.shape[-1], -1) + params[name + ".bias"]


def norm(x, name, eps):
    g, b = params[name + ".weight"], params.get(name + ".bias")
    if b is not None:
        return F.layer_norm(x, (x.shape[-1],), g, b, eps)
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g


def attend(q, k, v, mask):
    """[rows, heads, dim]; key heads are repeated."""
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2])
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v).reshape(q.shape[0], -1)


def rotate(x, pos):
    d = x.shape[-1] // 2
    a = pos[:, None] * 10000.0 ** (-torch.arange(d) / d)
    c, s = torch.cat([a, a], 1).cos()[:, None], torch.cat([a, a], 1).sin()[:, None]
    return x * c + torch.cat([-x[..., d:], x[..., :d]], -1) * s


def layer(x, b, p, mask, pos, names, eps):
    n1, q, k, v, o, n2, gate, up, down = names
    h = norm(x, p + n1, eps)
    q, k, v = (linear(h, p + n).view(len(x), -1, b["head_dim"]) for n in (q, k, v))
    if p + "self_attn.q_norm.weight" in params:
        q, k = norm(q, p + "self_attn.q_norm", eps), norm(k, p + "self_attn.k_norm", eps)
    if pos is not None:
        q, k = rotate(q, pos), rotate(k, pos)
    x = x + linear(attend(q, k, v, mask), p + o)
    h = norm(x, p + n2, eps)
    if gate:
        return x + linear(F.silu(linear(h, p + gate)) * linear(h, p + up), p + down)
    return x + linear(F.gelu(linear(h, p + up)), p + down)


LLAMA = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
         "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
         "mlp.down_proj"]
VIT = ["layernorm_before", "attention.attention.query", "attention.attention.key",
       "attention.attention.value", "attention.output.dense", "layernorm_after", None,
       "intermediate.dense", "output.dense"]


def gpt2_layer(x, b, p, mask):
    h = conv1d(norm(x, p + "ln_1", 1e-5), p + "attn.c_attn")
    q, k, v = (t.reshape(len(x), b["heads"], -1) for t in h.chunk(3, -1))
    x = x + conv1d(attend(q, k, v, mask), p + "attn.c_proj")
    h = conv1d(norm(x, p + "ln_2", 1e-5), p + "mlp.c_fc")
    h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return x + conv1d(h, p + "mlp.c_proj")


def llm():
    doc, ids, target, in_row, cond_row = (
        data[n].long() for n in ("doc", "ids", "target", "in_row", "cond_row"))
    gpt, width = kind == "gpt2", blocks[0]["hidden"]
    table = params["transformer.wte.weight" if gpt else "model.embed_tokens.weight"].view(-1, width)
    x = F.embedding(ids.clamp(min=0), table) * (ids >= 0)[:, None]
    x = x.index_copy(0, in_row, data["in"].view(-1, width))
    pos = torch.tensor([int((doc[:i] == doc[i]).sum()) for i in range(len(doc))])
    mask = (doc[:, None] == doc[None]) & (torch.arange(len(doc))[:, None] >= torch.arange(len(doc)))
    if gpt:
        x = x + F.embedding(pos, params["transformer.wpe.weight"].view(-1, width))
    for i, b in enumerate(blocks[1:-1]):
        if gpt:
            x = gpt2_layer(x, b, f"transformer.h.{i}.", mask)
        else:
            x = layer(x, b, f"model.layers.{i}.", mask, pos, LLAMA, 1e-5)
    x = norm(x, "transformer.ln_f" if gpt else "model.norm", 1e-5)
    logits = x @ params.get("lm_head.weight", table).view(-1, width).T
    loss = F.cross_entropy(logits, target, ignore_index=-1, reduction="sum") * data["scale"]
    return loss, x[cond_row].reshape(-1)


def projector(x, p):
    if p + "linear.weight" in params:
        return linear(x, p + "linear")
    return linear(F.gelu(linear(x, p + "linear_1")), p + "linear_2")


def encoder():
    image = data["image"]
    x = linear(data["pixels"].view(len(image), -1), "embeddings.patch_embeddings.projection")
    table = params["embeddings.position_embeddings"].view(-1, x.shape[-1])
    x = x + table[data["pos"].long()]
    if "pre_layrnorm.weight" in params:
        x = norm(x, "pre_layrnorm", 1e-12)
    for i, b in enumerate([b for b in blocks if b["heads"]]):
        x = layer(x, b, f"encoder.layer.{i}.", image[:, None] == image[None], None, VIT, 1e-12)
    x = norm(x, "layernorm", 1e-12)
    if "multi_modal_projector.linear_1.weight" in params:
        x = projector(x, "multi_modal_projector.")
    return torch.zeros(1), x.reshape(-1)


def conv(x, name, stride=1):
    w = params[name + ".weight"]
    side = 1 if "shortcut" in name else 3
    return F.conv2d(x, w.view(-1, x.shape[1], side, side), params[name + ".bias"], stride, side // 2)


def groups(c):
    g = 32
    while g > 1 and (c % g or c // g < 4):
        g //= 2
    return g


def group_norm(x, name, eps):
    return F.group_norm(x, groups(x.shape[1]), params[name + ".weight"], params[name + ".bias"], eps)


def resnet(x, p, time):
    h = conv(F.silu(group_norm(x, p + "norm1", 1e-5)), p + "conv1")
    h = h + linear(F.silu(time), p + "time_emb_proj")[:, :, None, None]
    h = conv(F.silu(group_norm(h, p + "norm2", 1e-5)), p + "conv2")
    if p + "conv_shortcut.weight" in params:
        x = conv(x, p + "conv_shortcut")
    return x + h


def spatial(x, b, p, states):
    n, c, h, w = x.shape
    y = linear(group_norm(x, p + "norm", 1e-6)[0].permute(1, 2, 0).reshape(-1, c), p + "proj_in")
    for i in range(b["depth"]):
        q = f"{p}transformer_blocks.{i}."
        for a, ctx in (("attn1", None), ("attn2", states)):
            t = norm(y, q + ("norm1" if a == "attn1" else "norm2"), 1e-5)
            s = t if ctx is None else ctx
            parts = [linear(v, f"{q}{a}.to_{m}").view(len(v), b["heads"], -1)
                     for v, m in ((t, "q"), (s, "k"), (s, "v"))]
            y = y + linear(attend(*parts, None), f"{q}{a}.to_out.0")
        t, gate = linear(norm(y, q + "norm3", 1e-5), q + "ff.net.0.proj").chunk(2, -1)
        y = y + linear(t * F.gelu(gate), q + "ff.net.2")
    return x + linear(y, p + "proj_out").view(h, w, c).permute(2, 0, 1)[None]


def pair(x, where, i, time, states, queue):
    x = resnet(x, f"{where}resnets.{i}.", time)
    if f"{where}attentions.{i}.norm.weight" in params:
        x = spatial(x, queue.pop(0), f"{where}attentions.{i}.", states)
    return x


def count(where):
    n = 0
    while f"{where}resnets.{n}.conv1.weight" in params:
        n += 1
    return n


def unet(x, time, states):
    queue = [b for b in blocks if b["kind"] == SPATIAL]
    x = conv(x, "conv_in")
    skips, level = [x], 0
    while count(f"down_blocks.{level}."):
        where = f"down_blocks.{level}."
        for i in range(count(where)):
            x = pair(x, where, i, time, states, queue)
            skips.append(x)
        if where + "downsamplers.0.conv.weight" in params:
            x = conv(x, where + "downsamplers.0.conv", 2)
            skips.append(x)
        level += 1
    x = pair(x, "mid_block.", 0, time, states, queue)
    x = resnet(x, "mid_block.resnets.1.", time)
    for level in range(level):
        where = f"up_blocks.{level}."
        for i in range(count(where)):
            x = pair(torch.cat([x, skips.pop()], 1), where, i, time, states, queue)
        if where + "upsamplers.0.conv.weight" in params:
            x = conv(F.interpolate(x, scale_factor=2), where + "upsamplers.0.conv")
    return conv(F.silu(group_norm(x, "conv_norm_out", 1e-5)), "conv_out")


def generator():
    sizes = data["sizes"].long().view(-1, 2).tolist()
    states = data["in"].view(len(sizes), 3, -1)
    width = next(b["hidden"] for b in blocks if b["kind"] == 9)
    loss, at, preds = torch.zeros(1), 0, []
    for i, (h, w) in enumerate(sizes):
        x0, noise = (data[n][at : at + 3 * h * w].view(h, w, 3).permute(2, 0, 1)[None]
                     for n in ("x0", "noise"))
        at += 3 * h * w
        a = data["t"][i] * torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
        time = linear(torch.cat([a.cos(), a.sin()])[None], "time_embedding.linear_1")
        time = linear(F.silu(time), "time_embedding.linear_2")
        s = states[i]
        if "context_projector.linear_1.weight" in params:
            s = projector(s, "context_projector.")
        pred = unet(data["alpha"][i] * x0 + data["sigma"][i] * noise, time, s)
        preds.append(pred[0].permute(1, 2, 0).reshape(-1))
        loss = loss + data["scale"] * F.mse_loss(pred, noise)
    compare("pred", data["pred"], torch.cat(preds))
    return loss, torch.zeros(0)


failed = 0


def compare(name, got, want):
    global failed
    scale = 0.1 + float(want.detach().norm())
    diff = float((got - want.detach()).norm()) if got.numel() else 0.0
    if not diff <= TOLERANCE * scale:
        failed += 1
        print(f"{kind}: {name}: differs by {diff:.3g} of {scale:.3g}")


loss, out = llm() if "doc" in data else encoder() if "image" in data else generator()
compare("loss", data["loss"], loss.reshape(-1))
compare("out", data["out"], out)
(loss.sum() + (out * data["weights"]).sum()).backward()
for n, p in params.items():
    compare("gradient of " + n, data["grad " + n], torch.zeros_like(p) if p.grad is None else p.grad)
if data["in"].numel():
    compare("gradient of the flow in", data["d_in"], data["in"].grad)
print(f"{kind}: {len(params)} tensors compared, {failed} differ")
sys.exit(1 if failed else 0)
