# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Weights go both ways between `disttrain train` and Hugging Face's transformers and diffusers.
#
#   hf_compare.py DISTTRAIN DIR
#
# For tiny random models: transformers saves, disttrain reads (run.init_from) and must have
# transformers' loss; disttrain trains and saves, transformers reads and must have disttrain's loss.
# Vision towers and U-Nets: every parameter comes back unchanged under its name.
import io, json, os, struct, subprocess, sys, tarfile

import torch

disttrain, top = sys.argv[1:3]
torch.manual_seed(2385)
BOS, EOS, VOCAB = 256, 257, 264
TEXTS = ["The quick brown fox", "jumps over", "a lazy dog, again and again; then it rests.", "42",
         "caf\u00e9 \u2014 na\u00efve", "x" * 37]
failed = 0


def check(what, ok, why=""):
    global failed
    print(("ok    " if ok else "FAIL  ") + what + (": " + why if why else ""))
    failed += not ok


def run(job, *over):
    cmd = [disttrain, "train", job, "--json", "--no-runs", *over]
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode:
        sys.exit(" ".join(cmd) + "\n" + r.stderr)
    return json.loads(r.stdout)


def shard(path, texts, image=None):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as t:
        for i, text in enumerate(texts):
            members = [("txt", text.encode())] + ([("png", image)] if image else [])
            for ext, data in members:
                info = tarfile.TarInfo(f"{i:04d}.{ext}")
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))


def tensors(path):  # a safetensors file, read by hand: nothing but the format is needed
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, body = json.loads(f.read(n)), f.read()
    out = {}
    for name, x in head.items():
        if name != "__metadata__":
            a, b = x["data_offsets"]
            assert x["dtype"] == "F32", (name, x["dtype"])
            out[name] = torch.frombuffer(bytearray(body[a:b]), dtype=torch.float32).reshape(x["shape"])
    return out


def save(path, state):
    from safetensors.torch import save_file
    save_file({k: v.detach().clone().contiguous() for k, v in state.items()}, path)


def loss(model, texts):  # nats per token that is to be foretold: text and eos
    nll, n = 0.0, 0
    for t in texts:
        ids = torch.tensor([[BOS, *t.encode(), EOS]])
        with torch.no_grad():
            p = model(ids).logits.double().log_softmax(-1)
        nll -= p[0, :-1].gather(-1, ids[0, 1:, None]).sum().item()
        n += ids.shape[1] - 1
    return nll / n


def language(name, make, config):
    d = os.path.join(top, name)
    os.makedirs(d)
    model = make(config).eval()
    with torch.no_grad():  # norms and biases that are not their defaults
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(d, safe_serialization=True)
    shard(os.path.join(d, "text.tar"), TEXTS)
    job = os.path.join(d, "job.yaml")
    with open(job, "w") as f:
        f.write(f"""model: {{modules: {{llm: {{hf: {d}/config.json}}}}}}
cluster: local
samples: text
train: {{global_batch: {len(TEXTS)}, microbatch: 2, seq_len: 64, recompute: none, zero: 1}}
plan: {{colocated: true}}
search: {{strategy: manual, allow_analytical: true}}
run: {{data: {d}/text.tar, text_only: true, packed: false, shuffle: false, precision: fp32,
  init_from: {d}/model.safetensors, lr: 0, warmup_steps: 0, weight_decay: 0}}
""")
    got, want = run(job, "run.steps=1")["loss_text"], loss(model, TEXTS)
    check(f"{name}: disttrain has transformers' loss", abs(got / want - 1) < 1e-5,
          f"{got:.8f}, {want:.8f}")
    ck = os.path.join(d, "ck")
    common = [f"run.checkpoint.dir={ck}", "run.decay=constant"]
    trained = run(job, "run.steps=6", "run.lr=3e-3", *common)
    mine = {k.removeprefix("llm."): v
            for k, v in tensors(os.path.join(trained["checkpoint"], "model.safetensors")).items()}
    missing, unexpected = model.load_state_dict(mine, strict=False)
    missing = [k for k in missing if not (config.tie_word_embeddings and k == "lm_head.weight")
               and not k.endswith((".attn.bias", ".attn.masked_bias"))]
    check(f"{name}: names of a checkpoint", not missing and not unexpected,
          f"missing {missing}, unexpected {unexpected}" if missing or unexpected else "")
    model.tie_weights()
    want = loss(model, TEXTS)
    got = run(job, "run.steps=7", *common)["loss_text"]  # goes on from the checkpoint, at rate 0
    check(f"{name}: transformers has disttrain's loss", abs(got / want - 1) < 1e-5,
          f"{got:.8f}, {want:.8f}")
    check(f"{name}: it learnt", got < 0.9 * loss(make(config).eval(), TEXTS))


def picture(side):
    import zlib
    rows = b"".join(b"\0" + bytes((7 * x + 13 * y) % 256 for x in range(side) for _ in range(3))
                    for y in range(side))

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def round_trip(name, key, module, model, config, extra, ignore):
    d = os.path.join(top, name)
    os.makedirs(d)
    with open(os.path.join(d, "config.json"), "w") as f:
        f.write(config)
    # names are those of files: transformers 5 has others in memory
    model.save_pretrained(os.path.join(d, "hf"), safe_serialization=True)
    name_of = "diffusion_pytorch_model" if key == "generator" else "model"
    state = tensors(os.path.join(d, "hf", name_of + ".safetensors"))
    state = {k: v for k, v in state.items() if not ignore(k)}
    prefix = f"{key}." if key == "generator" else ""
    save(os.path.join(d, "w.safetensors"), {prefix + k: v for k, v in state.items()})
    shard(os.path.join(d, "d.tar"), TEXTS, picture(32))
    job = os.path.join(d, "job.yaml")
    with open(job, "w") as f:
        f.write(f"""model: {{modules: {{{module.format(config=d + "/config.json")},
  llm: {{kind: llm, layers: 1, hidden: 32, ffn: 64, heads: 2, vocab: {VOCAB}}}}}}}
cluster: local
samples: text
train: {{global_batch: 2, microbatch: 2, seq_len: 64, recompute: none, zero: 1}}
plan: {{colocated: true}}
search: {{strategy: manual, allow_analytical: true}}
run: {{data: {d}/d.tar, precision: fp32, init_from: {d}/w.safetensors, init_partial: true, lr: 0, weight_decay: 0,
  warmup_steps: 0, steps: 1, checkpoint: {{dir: {d}/ck}}{extra}}}
""")
    back = tensors(os.path.join(run(job)["checkpoint"], "model.safetensors"))
    back = {k.removeprefix(key + ".").removeprefix("vision_model."): v
            for k, v in back.items() if k.startswith(key + ".")}
    own = [k for k in back if k not in state]
    bad = [k for k, v in state.items() if k not in back or not torch.equal(back[k].reshape(v.shape), v)]
    check(f"{name}: {len(state)} parameters come back, {len(own)} of our own", not bad, " ".join(bad[:5]))


def main():
    import transformers as hf
    small = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    def llama(theta, scaling=None, **more):  # transformers 5 has one key for both
        rope = dict(rope_theta=theta, rope_scaling=scaling)
        if int(hf.__version__.split(".")[0]) >= 5:
            rope = dict(rope_parameters=dict(scaling or dict(rope_type="default"), rope_theta=theta))
        return hf.LlamaConfig(**small, **rope, **more)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)
    language("llama", hf.LlamaForCausalLM, llama(10000.0))
    language("llama-theta", hf.LlamaForCausalLM, llama(500000.0, rms_norm_eps=1e-3, hidden_act="gelu"))
    language("llama-llama3", hf.LlamaForCausalLM, llama(500000.0, llama3, tie_word_embeddings=True))
    language("llama-linear", hf.LlamaForCausalLM, llama(10000.0, dict(rope_type="linear", factor=4.0)))
    language("gpt2-scaled", hf.GPT2LMHeadModel,
             hf.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=48, n_layer=3, n_head=3,
                           scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True,
                           layer_norm_epsilon=1e-3, activation_function="relu"))
    language("gpt2", hf.GPT2LMHeadModel,
             hf.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=48, n_layer=2, n_head=3))
    if hasattr(hf, "Qwen2ForCausalLM"):
        language("qwen2", hf.Qwen2ForCausalLM, hf.Qwen2Config(**small, tie_word_embeddings=True))
    tower = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                 image_size=32, patch_size=8)
    for name, make, config, left in (
            ("vit", lambda c: hf.ViTModel(c, add_pooling_layer=False), hf.ViTConfig(**tower), "pooler"),
            ("clip", hf.CLIPVisionModel, hf.CLIPVisionConfig(**tower), "post_layernorm"),
            ("siglip", hf.SiglipVisionModel, hf.SiglipVisionConfig(**tower), "head")):
        round_trip(name, "encoder", "encoder: {{hf: {config}, class_attention: false}}", make(config),
                   config.to_json_string(), ", generate: 0", lambda k: left in k)
    try:
        from diffusers import UNet2DConditionModel
    except ImportError:
        print("no diffusers: the U-Net is left out")
    else:
        unet = UNet2DConditionModel(
            sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=2)
        round_trip("unet", "generator", "generator: {{hf: {config}, latent_scale: 4, resize: 32}}", unet,
                   json.dumps({**unet.config, "_class_name": "UNet2DConditionModel"}), "",
                   lambda k: False)
    sys.exit(failed != 0)


main()
