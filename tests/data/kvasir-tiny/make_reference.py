#!/usr/bin/env python3
"""Reference continuations of kvasir-tiny, from an implementation that shares nothing with Kvasir's.

make_reference.py REFERENCE_JSON GGUF    (needs numpy, gguf, safetensors)

REFERENCE_JSON holds the prompts and what transformers says in float32 over the BF16 checkpoint; its ids and margins
are copied to reference_bf16.json. reference_q4km.json is computed here: 64 greedy tokens per prompt by the float64
NumPy forward pass of ../spec_check.py over the dequantised weights of GGUF, with the top-1/top-2 logit margin and the
least router margin (probability of the last chosen expert minus that of the next) of every step.
"""
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
STEPS = 64


def spec():
    """The definitions of spec_check.py without its checks and without torch, which only BF16 checkpoints need."""
    source = (HERE.parent / "spec_check.py").read_text().split("\ndef check(")[0]
    names = {}
    exec(source.replace("from safetensors.torch import load_file as lt", ""), names)
    return names


def router_margin(model, moe_inputs):
    """The least margin over the layers at the last row; `moe_inputs` are that row's router probabilities."""
    ordered = [np.sort(p)[::-1] for p in moe_inputs]
    return min(float(p[model.k - 1] - p[model.k]) for p in ordered)


def continue_greedily(names, model, prompt):
    probabilities = []
    moe = type(model).moe

    def watched(self, layer, x):
        probabilities.append(names["softmax"](x[-1] @ layer["r"].T))
        return moe(self, layer, x)

    model.moe = watched.__get__(model)
    states = [{} for _ in model.layers]
    ids, margins, router_margins = [], [], []
    fed, position = np.array(prompt), 0
    for _ in range(STEPS):
        probabilities.clear()
        logits = model.fwd(fed, states, position)[0][-1]
        position += len(fed)
        first, second = np.sort(logits)[::-1][:2]
        ids.append(int(logits.argmax()))
        margins.append(round(float(first - second), 5))
        router_margins.append(float(f"{router_margin(model, probabilities):.3e}"))
        fed = np.array(ids[-1:])
    del model.moe
    return {"generated_ids": ids, "margins": margins, "router_margins": router_margins}


def write(name, prompts):
    lines = ",\n".join(" " + json.dumps(prompt) for prompt in prompts)
    (HERE / name).write_text(f"[\n{lines}\n]\n")


def main(reference_json, gguf):
    prompts = json.loads(Path(reference_json).read_text())["prompts"]
    keep = lambda p: {"text": p["text"], "input_ids": p["input_ids"]}
    write("reference_bf16.json", [keep(p) | {"generated_ids": p["generated_ids"], "margins": p["top1_top2_margin_per_step"]} for p in prompts])
    names = spec()
    model = names["gg"](gguf)
    write("reference_q4km.json", [keep(p) | continue_greedily(names, model, p["input_ids"]) for p in prompts])


if __name__ == "__main__":
    main(*sys.argv[1:])
