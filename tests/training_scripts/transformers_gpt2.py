"""Train a small GPT-2 with the Trainer of Transformers, which wraps it in DistributedDataParallel."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.rows = torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    """Train for `--steps` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    config = GPT2Config(
        vocab_size=options.vocabulary,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=options.accumulate,
            max_steps=options.steps,
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
        )
        data = Tokens(4096, options.length, options.vocabulary)
        Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
