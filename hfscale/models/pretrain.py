"""Make a pocket checkpoint from nothing: tokenizer, pretraining, evaluation, card.

    python -m hfscale.models.pretrain pocket-llama --out DIR
    python -m hfscale.models.pretrain pocket-moe   --out DIR

The text is the docstrings of the standard library of the Python that runs this. On one core it takes some six minutes.
DIR then holds config, weights (bf16), tokenizer and README.md, the card: every number on it is written by this script.
The seed is fixed; another Python, torch build or machine still gives slightly other weights.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hfscale.data.docstrings import split_docstrings
from hfscale.models import pretrain_card
from hfscale.models.ngram import bigram_loss, unigram_loss
from hfscale.models.pocket import POCKET_MODELS, load_model, load_tokenizer
from hfscale.models.pretrain_finetuning import finetuning_losses
from hfscale.models.pretrain_tokenizer import EOS_ID, PAD_ID, VOCAB_SIZE, train_tokenizer

WINDOW = 256  # tokens; a longer window than recipes use, so that they stay inside what was trained
BATCH = 8  # windows per step: 2,048 tokens
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 50
# Nearly four passes over the text. More lowers the held-out loss further, and leaves less for fine-tuning to gain.
STEPS = 900
# Without it some experts are never chosen. Only here: recipes train with the plain cross-entropy.
BALANCE_WEIGHT = 0.03
FINETUNING_ORDERS = 3
SHARED_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": EOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train_texts, held_out_texts = split_docstrings()
    tokenizer = train_tokenizer(train_texts)
    train, held_out = (_encode(texts, tokenizer) for texts in (train_texts, held_out_texts))

    model = new_model(options.model)
    started = time.perf_counter()
    pretrain(model, train, _in_order(held_out), steps=options.steps, seed=options.seed)
    seconds = time.perf_counter() - started

    folder = Path(options.out)
    _save(model, tokenizer, folder)
    facts = {
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "train_docstrings": len(train),
        "train_tokens": len(_in_order(train)),
        "held_out_docstrings": len(held_out),
        "held_out_tokens": len(_in_order(held_out)),
        "pretraining_steps": options.steps,
        "windows_per_step": BATCH,
        "window_tokens": WINDOW,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "expert_balance_weight": BALANCE_WEIGHT if _has_experts(model) else 0.0,
        "pretraining_seconds": round(seconds),
        "threads": options.threads,
        "seed": options.seed,
        **evaluate(folder, _in_order(train), _in_order(held_out)),
    }
    pretrain_card.write(options.model, folder, facts)
    print((folder / "README.md").read_text(encoding="utf-8"))


def evaluate(folder: Path, train: np.ndarray, held_out: np.ndarray) -> dict[str, float]:
    """What the card says of the checkpoint in `folder`, loaded in fp32 as recipes do. Losses in nats per token."""
    tokenizer = load_tokenizer(str(folder))
    runs = [finetuning_losses(load_model(str(folder)), tokenizer, seed) for seed in range(FINETUNING_ORDERS)]
    losses = {
        "model_loss": stream_loss(load_model(str(folder)), held_out),
        "bigram_loss": bigram_loss(train, held_out, VOCAB_SIZE),
        "unigram_loss": unigram_loss(train, held_out, VOCAB_SIZE),
        "finetuning_before": runs[0][0],
        "finetuning_after": sum(after for _, after in runs) / len(runs),
        "finetuning_smallest_gain": min(before - after for before, after in runs),
    }
    return {name: round(loss, 3) for name, loss in losses.items()} | {"finetuning_orders": FINETUNING_ORDERS}


def new_model(name: str) -> PreTrainedModel:
    """A freshly initialised pocket model in fp32, its config as it is stored beside the weights."""
    if name == "pocket-llama":
        return LlamaForCausalLM(LlamaConfig(**SHARED_CONFIG, intermediate_size=344))
    config = Qwen3MoeConfig(
        **SHARED_CONFIG,
        intermediate_size=344,  # of dense layers, of which there are none
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        # The loss stays the plain cross-entropy: the auxiliary loss depends on how a batch is split over ranks.
        output_router_logits=False,
        router_aux_loss_coef=0.0,
    )
    return Qwen3MoeForCausalLM(config)


def pretrain(model: PreTrainedModel, documents: list[np.ndarray], held_out: np.ndarray, steps: int, seed: int) -> None:
    """AdamW on packed windows; learning rate: linear warm-up, then a half cosine to a tenth of the peak."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share_of_peak(step, steps))
    started = time.perf_counter()
    for step, batch_BT in zip(range(1, steps + 1), _batches(documents, seed), strict=False):
        model.train()
        loss, experts_imbalance = _losses(model, batch_BT)
        (loss + BALANCE_WEIGHT * experts_imbalance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps:
            held, seconds = stream_loss(model, held_out), time.perf_counter() - started
            print(f"step {step:5d}  train {loss.item():.3f}  held-out {held:.3f}  {seconds:5.0f} s", flush=True)


def _losses(model: PreTrainedModel, batch_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
    """(cross-entropy, imbalance of the experts): apart, since the config's coefficient is 0."""
    if not _has_experts(model):
        return model(input_ids=batch_BT, labels=batch_BT).loss, 0.0
    output = model(input_ids=batch_BT, labels=batch_BT, output_router_logits=True)
    layers = [imbalance(logits, model.config.num_experts_per_tok) for logits in output.router_logits]
    return output.loss, sum(layers) / len(layers)


def imbalance(router_logits_NE: torch.Tensor, top_k: int) -> torch.Tensor:
    """E · Σ_e share_e · p_e of one layer: 1 if tokens and probabilities are spread evenly over E experts, else more.

    Transformers' auxiliary loss puts the layers together first, so that it is content with an expert that is idle in
    one layer and busy in another. Here each layer counts by itself: an idle expert would get no gradient there.
    """
    experts = router_logits_NE.shape[-1]
    p_E = router_logits_NE.softmax(dim=-1).mean(dim=0)
    chosen = router_logits_NE.topk(top_k).indices.flatten()
    share_E = torch.bincount(chosen, minlength=experts) / len(chosen)
    return experts * (share_E * p_E).sum()


def _has_experts(model: PreTrainedModel) -> bool:
    return hasattr(model.config, "num_experts")


def _share_of_peak(step: int, steps: int) -> float:
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)))


def _batches(documents: list[np.ndarray], seed: int):
    """Endless [BATCH, WINDOW] batches; documents are shuffled anew, and packed, for each pass over them."""
    random = np.random.default_rng(seed)
    while True:
        stream = pack(documents, order=random.permutation(len(documents)))
        rows = len(stream) // WINDOW
        windows = torch.from_numpy(stream[: rows * WINDOW].reshape(rows, WINDOW))
        for chosen in torch.from_numpy(random.permutation(rows)).split(BATCH):
            if len(chosen) == BATCH:
                yield windows[chosen]


def pack(documents: list[np.ndarray], order) -> np.ndarray:
    """One stream of token ids: eos, document, eos, document, ..., eos."""
    eos = np.array([EOS_ID])
    return np.concatenate([eos, *(part for i in order for part in (documents[i], eos))]).astype(np.int64)


@torch.no_grad()
def stream_loss(model: PreTrainedModel, stream: np.ndarray) -> float:
    """Mean −log p(token), in nats, over stream[1:], each predicted once from at most WINDOW tokens before it."""
    model.eval()
    total = 0.0
    for start in range(0, len(stream) - 1, WINDOW):
        ids_BT = torch.from_numpy(stream[start : start + WINDOW + 1])[None]
        logits_BTV = model(input_ids=ids_BT[:, :-1]).logits.float()
        total += torch.nn.functional.cross_entropy(logits_BTV[0], ids_BT[0, 1:], reduction="sum").item()
    return total / (len(stream) - 1)


def _encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    return [np.array(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]


def _in_order(documents: list[np.ndarray]) -> np.ndarray:
    return pack(documents, order=range(len(documents)))


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # weights are written readable for their owner only, who is not who uses an installed package


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hfscale.models.pretrain", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=POCKET_MODELS)
    parser.add_argument("--out", required=True, help="folder for the checkpoint and its card")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
