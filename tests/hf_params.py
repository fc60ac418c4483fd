# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
"""The parameters that test_hf_models counts are those of transformers' classes, built without memory
from the same files.  Usage: hf_params.py TABLE DIR, TABLE being what "test_hf_models --table" prints."""
import json
import sys
import warnings

import torch
import transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

TOWERS = ("clip", "siglip", "dinov2")
BOTH = ("llava", "qwen2_vl", "qwen2_5_vl", "gemma3", "paligemma")
OTHERS = ("deepseek", "internlm2", "intern_vit_6b", "internvl_chat")  # code beside their weights


def parameters(config):
    kind = config.pop("model_type")
    if kind in OTHERS:
        return None
    config = transformers.AutoConfig.for_model(kind, **config)
    if kind in TOWERS:
        auto = transformers.AutoModel
    elif kind in BOTH:
        auto = transformers.AutoModelForImageTextToText
    else:
        auto = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    model = model.vision_model if kind in TOWERS and hasattr(model, "vision_model") else model
    biases = sum(b.numel() for n, b in model.named_buffers() if n.endswith("score_correction_bias"))
    return sum(p.numel() for p in model.parameters()) + biases


compared = wrong = 0
for line in open(sys.argv[1]):
    name, ours = line.split()
    try:
        theirs = parameters(json.load(open(f"{sys.argv[2]}/{name}.json")))
    except (KeyError, ValueError, ImportError) as why:  # an older transformers
        print(f"{name}: not known to transformers {transformers.__version__} ({why})")
        continue
    if theirs is not None:
        compared += 1
    if theirs is not None and theirs != int(ours):
        wrong += 1
        print(f"{name}: {ours}, transformers has {theirs}")
print(f"{compared} models compared with transformers {transformers.__version__}, {wrong} differ")
sys.exit(wrong > 0 or compared < 20)
