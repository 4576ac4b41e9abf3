"""A model to try the route on: random weights of Qwen3's kind, made here in a second; nothing is downloaded.

It says nothing that makes sense, but everything round it is real: a byte-level tokenizer with Qwen3's special tokens
and a chat template, weights that learn, and the format that transformers, vLLM and verifiers' renderers read.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from rlm_dspy.training.local_model import need_torch, without_bars

__all__ = ["make_tiny_model"]

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
TEMPLATE = (
    "{% set silent = enable_thinking is defined and not enable_thinking %}"
    "{% set head = '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if silent else '') %}"
    "{% for m in messages %}{{ head if m['role'] == 'assistant' else '<|im_start|>' + m['role'] + '\n' }}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}{{ head }}{% endif %}"
)
"""As verifiers' renderer of Qwen3 has it, turn by turn."""


def make_tiny_model(
    folder: str | PathLike[str],
    texts: Iterable[str] = (),
    *,
    vocabulary: int = 1_000,
    hidden: int = 64,
    layers: int = 2,
    window: int = 16_384,
    lines: bool = False,
    seed: int = 0,
) -> Path:
    """Write a tokenizer and a model of random weights to a folder.

    Args:
        folder: Where to.
        texts: What the tokenizer is made from: the more alike to what it will read, the fewer tokens that is.
        vocabulary: Tokens, at most; single bytes are always among them.
        hidden, layers: Size of the model.
        window: Tokens of context.
        lines: A token may be as long as a line, not just as long as a word: what the texts repeat is then few tokens,
            and a prompt that takes a thousand otherwise takes two or three hundred.
        seed: Of the weights.

    Raises:
        MissingExtraError: torch or transformers is missing.
    """
    need_torch()
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    plain = Tokenizer(models.BPE())
    if lines:
        apart = pre_tokenizers.Split("\n", "isolated")
        plain.pre_tokenizer = pre_tokenizers.Sequence([apart, pre_tokenizers.ByteLevel(False, use_regex=False)])
    else:
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
    )
    tokenizer.chat_template = TEMPLATE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with without_bars():
        model.save_pretrained(str(place))
    tokenizer.save_pretrained(str(place))
    return place
