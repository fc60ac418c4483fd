# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""Small checkpoints as Hugging Face's classes name and lay out their tensors, written without those classes, and a
comparison of what disttrain has saved with them.

hf_weights.py write KIND DIR        DIR/KIND.json (the config) and DIR/KIND.safetensors, random values in float32
hf_weights.py same KIND DIR SAVED   every tensor of KIND's is in the checkpoint SAVED, bit for bit, and the module has no other
"""
import glob
import json
import random
import struct
import sys

H, LAYERS, VOCAB, EXPERTS, WIDE = 16, 2, 264, 4, 12


def attention(at, bias):
    out = {}
    for name in "qkv":
        out[f"{at}self_attn.{name}_proj.weight"] = (H, H)
        if bias:
            out[f"{at}self_attn.{name}_proj.bias"] = (H,)
    out[f"{at}self_attn.o_proj.weight"] = (H, H)
    for name in ("input_layernorm", "post_attention_layernorm"):
        out[f"{at}{name}.weight"] = (H,)
    return out


def llm(layer):
    out = {"model.embed_tokens.weight": (VOCAB, H), "model.norm.weight": (H,), "lm_head.weight": (VOCAB, H)}
    for i in range(LAYERS):
        out.update(layer(f"model.layers.{i}."))
    return out


def mixtral_layer(at):  # MixtralForCausalLM
    out = attention(at, False)
    out[f"{at}block_sparse_moe.gate.weight"] = (EXPERTS, H)
    for e in range(EXPERTS):
        for name, shape in (("w1", (WIDE, H)), ("w2", (H, WIDE)), ("w3", (WIDE, H))):
            out[f"{at}block_sparse_moe.experts.{e}.{name}.weight"] = shape
    return out


def mlp(at, wide):
    return {f"{at}gate_proj.weight": (wide, H), f"{at}up_proj.weight": (wide, H), f"{at}down_proj.weight": (H, wide)}


def qwen2_moe_layer(at):  # Qwen2MoeForCausalLM: one shared expert behind a gate
    out = attention(at, True)
    out[f"{at}mlp.gate.weight"] = (EXPERTS, H)
    for e in range(EXPERTS):
        out.update(mlp(f"{at}mlp.experts.{e}.", WIDE))
    out.update(mlp(f"{at}mlp.shared_expert.", 20))
    out[f"{at}mlp.shared_expert_gate.weight"] = (1, H)
    return out


def qwen2_vl():  # the vision tower of Qwen2VLForConditionalGeneration: 2 moments, patches of 2, 2 x 2 of them merged
    out = {"visual.patch_embed.proj.weight": (H, 3, 2, 2, 2)}
    both = [("norm1", (H,)), ("norm2", (H,)), ("attn.qkv", (3 * H, H)), ("attn.proj", (H, H)),
            ("mlp.fc1", (4 * H, H)), ("mlp.fc2", (H, 4 * H))]
    for i in range(LAYERS):
        for name, shape in both:
            out[f"visual.blocks.{i}.{name}.weight"] = shape
            out[f"visual.blocks.{i}.{name}.bias"] = shape[:1]
    for name, shape in (("ln_q", (H,)), ("mlp.0", (4 * H, 4 * H)), ("mlp.2", (H, 4 * H))):
        out[f"visual.merger.{name}.weight"] = shape
        out[f"visual.merger.{name}.bias"] = shape[:1]
    return out


def qwen2_5_vl():  # Qwen2_5_VLForConditionalGeneration's: norms without shifts, gated MLPs
    out = {"visual.patch_embed.proj.weight": (H, 3, 2, 2, 2), "visual.merger.ln_q.weight": (H,)}
    both = {"visual.merger.mlp.0": (4 * H, 4 * H), "visual.merger.mlp.2": (H, 4 * H)}
    for i in range(LAYERS):
        at = f"visual.blocks.{i}."
        both.update({at + "attn.qkv": (3 * H, H), at + "attn.proj": (H, H), at + "mlp.gate_proj": (20, H),
                     at + "mlp.up_proj": (20, H), at + "mlp.down_proj": (H, 20)})
        out.update({at + "norm1.weight": (H,), at + "norm2.weight": (H,)})
    for name, shape in both.items():
        out[name + ".weight"] = shape
        out[name + ".bias"] = shape[:1]
    return out


TEXT = {"hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": VOCAB, "max_position_embeddings": 128, "tie_word_embeddings": False, "hidden_act": "silu"}
CONFIGS = {
    "mixtral": dict(TEXT, model_type="mixtral", intermediate_size=WIDE, num_local_experts=EXPERTS,
                    num_experts_per_tok=2, sliding_window=None, rms_norm_eps=1e-5, rope_theta=1e6),
    "qwen2_moe": dict(TEXT, model_type="qwen2_moe", intermediate_size=40, num_experts=EXPERTS,
                      num_experts_per_tok=2, moe_intermediate_size=WIDE, shared_expert_intermediate_size=20,
                      norm_topk_prob=False, decoder_sparse_step=1, use_sliding_window=False,
                      rms_norm_eps=1e-6, rope_theta=10000.0),
    "qwen2_vl": dict(TEXT, model_type="qwen2_vl", intermediate_size=40, rms_norm_eps=1e-6, rope_theta=10000.0,
                     vision_config={"model_type": "qwen2_vl", "depth": LAYERS, "embed_dim": H, "hidden_size": H,
                                    "num_heads": 2, "in_channels": 3, "mlp_ratio": 4, "patch_size": 2,
                                    "spatial_merge_size": 2, "temporal_patch_size": 2,
                                    "hidden_act": "quick_gelu"}),
    "qwen2_5_vl": dict(TEXT, model_type="qwen2_5_vl", intermediate_size=40, rms_norm_eps=1e-6, rope_theta=10000.0,
                       vision_config={"model_type": "qwen2_5_vl", "depth": LAYERS, "hidden_size": H,
                                      "out_hidden_size": H, "intermediate_size": 20, "num_heads": 2,
                                      "in_channels": 3, "patch_size": 2, "spatial_merge_size": 2,
                                      "temporal_patch_size": 2, "window_size": 8,
                                      "fullatt_block_indexes": [1], "hidden_act": "silu"}),
}
TENSORS = {"mixtral": llm(mixtral_layer), "qwen2_moe": llm(qwen2_moe_layer), "qwen2_vl": qwen2_vl(),
           "qwen2_5_vl": qwen2_5_vl()}


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def write(kind, folder):
    draw, header, data, at = random.Random(kind), {}, b"", 0
    for name, shape in TENSORS[kind].items():
        values = [draw.gauss(1 if "norm" in name or "ln_q" in name else 0, 0.1) for _ in range(elements(shape))]
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, len(data)]}
        at = len(data)
    text = json.dumps(header).encode()
    with open(f"{folder}/{kind}.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(f"{folder}/{kind}.json", "w") as f:
        json.dump(CONFIGS[kind], f)


def read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: (tuple(t["shape"]), data[slice(*t["data_offsets"])]) for name, t in header.items()}


def same(kind, folder, saved):
    module = "encoder." if kind.endswith("_vl") else "llm."
    ours, theirs = {}, read(f"{folder}/{kind}.safetensors")
    for path in glob.glob(f"{saved}/*.safetensors"):
        ours.update({n[len(module):]: t for n, t in read(path).items()
                     if n.startswith(module) and "exp_avg" not in n})
    for name in sorted(set(ours) ^ set(theirs)):
        print(f"{kind}: {name} is only in {'the checkpoint' if name in ours else 'the file'}")
    for name in sorted(set(ours) & set(theirs)):
        if ours[name] != theirs[name]:
            print(f"{kind}: {name} differs: {ours[name][0]} and {theirs[name][0]}")
    print(f"{len(theirs)} tensors of {kind}")
    sys.exit(ours != theirs)


if sys.argv[1] == "write":
    write(*sys.argv[2:])
else:
    same(*sys.argv[2:])
