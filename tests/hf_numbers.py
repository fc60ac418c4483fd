# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What tests/test_hf_numbers.c computes from Hugging Face configs, by transformers and diffusers.
#
#   hf_numbers.py --table > tests/hf_numbers.h     the configs and figures of the test's table
#   hf_numbers.py PROGRAM DIR                      every config of the sweep against PROGRAM --dump
#
# Written with torch 2.15.0, transformers 5.23.0, diffusers 0.42.1 (fp64).
import copy, json, math, os, subprocess, sys

import numpy as np
import torch
import transformers as hf

ROWS, SIDE, T = 24, 16, 37
torch.set_default_dtype(torch.float64)


def formula(name, n):
    h = 2166136261
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xffffffff
    m = np.uint64(0xffffffff)
    h = (np.uint64(h) + np.arange(n, dtype=np.uint64) * np.uint64(2654435769)) & m
    h = ((h ^ (h >> np.uint64(16))) * np.uint64(0x85ebca6b)) & m
    h = ((h ^ (h >> np.uint64(13))) * np.uint64(0xc2b2ae35)) & m
    return torch.tensor((h ^ (h >> np.uint64(16))).astype(np.float64) / 4294967296.0 - 0.5)


def fill(model, name_of=lambda n: n):
    for name, p in model.named_parameters():
        u = formula(name_of(name), p.numel()).reshape(p.shape)
        if p.dim() == 1:
            one = name.endswith("weight")  # of a norm
            v = 0.4 * u + (1 if one else 0)
        else:
            v = 4 * u / math.sqrt(p.numel() / p.shape[0])
        p.data.copy_(v.float())
    return model.eval()


def language(make, config):
    model = fill(make(config).double())
    i = torch.arange(ROWS + 1)
    ids = (7 * i * i + 3 * i + 1) % config.vocab_size
    with torch.no_grad():
        p = model(ids[None, :ROWS]).logits.log_softmax(-1)
    return -p[0].gather(-1, ids[1:, None])[:, 0]


def pixels():
    u8 = (256 * (formula("pixels", SIDE * SIDE * 3) + 0.5)).floor()
    return (u8 / 127.5 - 1).reshape(1, SIDE, SIDE, 3).permute(0, 3, 1, 2)


def tower(make, config):
    def ours(n):
        return n if n.startswith("vision_model.") else "vision_model." + n
    model = fill(make(config).double(), ours)
    with torch.no_grad():
        return model(pixels()).last_hidden_state.reshape(-1)


def unet(config):
    from diffusers import UNet2DConditionModel
    model = fill(UNet2DConditionModel.from_config(config).double())
    c = config["in_channels"]
    x = 3 * formula("latents", SIDE * SIDE * c).float().double().reshape(1, SIDE, SIDE, c)
    states = 3 * formula("states", 5 * config["cross_attention_dim"])
    states = states.float().double().reshape(1, 5, -1)
    with torch.no_grad():
        y = model(x.permute(0, 3, 1, 2), T, states).sample
    return y.permute(0, 2, 3, 1).reshape(-1)


LLAMA = dict(model_type="llama", vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
QWEN2, QWEN3 = dict(LLAMA, model_type="qwen2"), dict(LLAMA, model_type="qwen3", head_dim=16)
GPT2 = dict(model_type="gpt2", vocab_size=97, n_positions=32, n_embd=48, n_layer=3, n_head=3)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=48, intermediate_size=80, num_hidden_layers=2,
              num_attention_heads=3, image_size=SIDE, patch_size=4, vision_use_head=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
UNET = dict(_class_name="UNet2DConditionModel", sample_size=SIDE, in_channels=3, out_channels=3,
            block_out_channels=[32, 64], layers_per_block=1, cross_attention_dim=24, attention_head_dim=2,
            norm_num_groups=8, down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
            up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"])
TABLE = [
    LLAMA,
    dict(LLAMA, rope_theta=500000.0),
    dict(LLAMA, rope_theta=500000.0, rope_scaling=LLAMA3),
    dict(LLAMA, rope_scaling=dict(rope_type="linear", factor=4.0)),
    dict(LLAMA, rms_norm_eps=0.01, hidden_act="gelu"),
    QWEN2,
    dict(QWEN3, rope_theta=1e6, tie_word_embeddings=True),
    GPT2,
    dict(GPT2, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=0.01),
    SIGLIP,
    dict(SIGLIP, layer_norm_eps=0.01, hidden_act="quick_gelu"),
    UNET,
    dict(UNET, norm_num_groups=16, norm_eps=0.01, flip_sin_to_cos=False, freq_shift=1),
]
SWEEP = TABLE + [
    *(dict(LLAMA, rope_theta=t) for t in (100.0, 1e4, 1e6)),
    *(dict(LLAMA, rms_norm_eps=e) for e in (1e-12, 1e-5, 0.1)),
    *(dict(LLAMA, hidden_act=a) for a in ("gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")),
    *(dict(LLAMA, rope_theta=500000.0, rope_scaling=dict(LLAMA3, factor=f, original_max_position_embeddings=o))
      for f, o in ((2.0, 16), (32.0, 64), (8.0, 8192))),
    *(dict(LLAMA, rope_scaling=dict(rope_type="linear", factor=f)) for f in (1.0, 2.0, 16.0)),
    *(dict(GPT2, activation_function=a) for a in ("gelu", "relu", "quick_gelu", "silu")),
    *(dict(GPT2, layer_norm_epsilon=e) for e in (1e-12, 0.1)),
    dict(GPT2, scale_attn_weights=False), dict(GPT2, scale_attn_by_inverse_layer_idx=True),
    dict(GPT2, n_inner=80), # reorder_and_upcast_attn: transformers has it in float32 only, this is float64
    *(dict(SIGLIP, hidden_act=a) for a in ("gelu", "relu")),
    *(dict(SIGLIP, layer_norm_eps=e) for e in (1e-12, 0.1)),
    *(dict(UNET, norm_num_groups=g) for g in (1, 4, 32)),
    *(dict(UNET, norm_eps=e) for e in (1e-6, 0.1)),
    dict(UNET, flip_sin_to_cos=False), dict(UNET, freq_shift=1), dict(UNET, use_linear_projection=True),
]


def written(c):  # what transformers of any version makes of it, as it saves it
    c = copy.deepcopy(c)
    if c["model_type"] in ("llama", "qwen2", "qwen3") and int(hf.__version__.split(".")[0]) >= 5:
        rope = dict(rope_theta=c.pop("rope_theta", 10000.0), **c.pop("rope_scaling", {}))
        c["rope_parameters"] = dict(dict(rope_type="default"), **rope)
    return c


def theirs(c):
    if "_class_name" in c:
        return unet(c), json.dumps(c)
    kind = c["model_type"]
    config = {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config, "qwen3": hf.Qwen3Config, "gpt2": hf.GPT2Config,
              "siglip_vision_model": hf.SiglipVisionConfig}[kind]
    config = config(**{k: v for k, v in written(c).items() if k != "model_type"})
    if kind == "siglip_vision_model":
        return tower(hf.SiglipVisionModel, config), config.to_json_string()
    make = {"llama": hf.LlamaForCausalLM, "qwen2": hf.Qwen2ForCausalLM, "qwen3": hf.Qwen3ForCausalLM,
            "gpt2": hf.GPT2LMHeadModel}[kind]
    config._attn_implementation = "eager"  # the others leave GPT-2's scales to chance
    return language(make, config), config.to_json_string()


def table():
    print("/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.\n *\n"
          " * Made by tests/hf_numbers.py --table: torch %s, transformers %s. */" %
          (torch.__version__, hf.__version__))
    for c in TABLE:
        y, _ = theirs(c)
        w = formula("digest", y.numel())
        text = json.dumps(c)
        lines = [text[i:i + 80] for i in range(0, len(text), 80)]
        print("{" + "\n ".join(json.dumps(s) for s in lines) + ",")
        print(" {%.10g, %.10g, %.10g}}," % (y.mean(), y.square().mean().sqrt(), (y * w).sum()))


def sweep(program, top):
    failed = 0
    for i, c in enumerate(SWEEP):
        try:
            want, text = theirs(c)
        except ImportError as e:
            print("left out:", e)
            continue
        path = os.path.join(top, f"config{i}.json")
        with open(path, "w") as f:
            f.write(text)
        r = subprocess.run([program, "--dump", path], capture_output=True, text=True)
        got = torch.tensor([float(x) for x in r.stdout.split()]) if r.returncode == 0 else None
        far = (got - want).norm() / want.norm() if got is not None and got.shape == want.shape else math.inf
        what = c.get("model_type", "unet") + " " + json.dumps(
            {k: v for k, v in c.items() if all(b.get(k) != v for b in (LLAMA, QWEN2, QWEN3, GPT2, SIGLIP, UNET))})
        print(("ok    " if far < 1e-5 else "FAIL  ") + f"{what}: {far:.2g}" + (r.stdout + r.stderr)[:500]
              * (got is None))
        failed += not far < 1e-5
    print(f"{len(SWEEP)} configs, {failed} differ")
    return failed != 0


if sys.argv[1:] == ["--table"]:
    table()
else:
    sys.exit(sweep(*sys.argv[1:3]))
