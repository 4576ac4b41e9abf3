"""A tokenizer made here, with the special tokens of Qwen3: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]


def make(folder: Path) -> Any:
    """Write a byte-level tokenizer to ``folder``, as the renderer of Qwen3 reads it, and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False)
    plain.train_from_iterator(["the answer is in the text, print it"], trainer)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": SPECIAL[1:]}
    made = PreTrainedTokenizerFast(tokenizer_object=plain, **names)
    made.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    made.save_pretrained(str(folder))
    return made
