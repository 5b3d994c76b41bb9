"""Files of tasks, and systems whose score on a task is known."""

import json
from types import SimpleNamespace

import torch
import yaml
from transformers import DynamicCache, LlamaConfig

from antiphase.lab.scoring.task_scores import score_samples


def written(tmp_path, tree, name="task.yaml"):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def data(tmp_path, name, content):
    (tmp_path / name).write_text(content if isinstance(content, str) else "\n".join(map(json.dumps, content)) + "\n")
    return name


class System:
    """Writes what ``says(prompt)`` gives, whatever it has read since; its score on a task is known."""

    device = torch.device("cpu")
    config = LlamaConfig(num_hidden_layers=1)
    _is_stateful = False

    def __init__(self, says, vocabulary):
        self.says, self.vocabulary = says, vocabulary
        self.generation_config = SimpleNamespace(eos_token_id=0)

    def modules(self):
        return []

    def _next(self, tokens):
        for length in range(len(tokens), 0, -1):
            answer = self.says(tuple(tokens[:length]))
            if answer is not None:
                rest = list(answer[len(tokens) - length :])
                return rest[0] if rest and tokens[length:] == list(answer[: len(tokens) - length]) else 0
        return 0

    def forward(self, input_ids, attention_mask=None, past_key_values=None, logits_to_keep=0, **_):
        """What it has read is kept as keys, so that a cache may be copied, cut and reordered as usual."""
        cache = DynamicCache(config=self.config) if past_key_values is None else past_key_values
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        tokens = input_ids.masked_fill(~real.bool(), -1)[:, None, :, None].float()
        read = cache.update(tokens, tokens, 0)[0][:, 0, :, 0].long()  # (B, M)
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        for row, ids in enumerate(read.tolist()):
            for column in range(input_ids.shape[1]):
                end = len(ids) - input_ids.shape[1] + column + 1
                logits[row, column, self._next([token for token in ids[:end] if token >= 0])] = 9.0
        return SimpleNamespace(logits=logits[:, -logits_to_keep:] if logits_to_keep else logits, past_key_values=cache)

    __call__ = forward

    def generate(self, input_ids, attention_mask, max_new_tokens, logits_processor):
        assert not self.generation_config.do_sample
        rows = [ids[real.bool()].tolist() for ids, real in zip(input_ids, attention_mask, strict=True)]
        for row in rows:
            row += [self._next(row)]
            while len(row) < 200 and row[-1] != 0:
                row.append(self._next(row))
        new = [row[int(real.sum()) :][:max_new_tokens] for row, real in zip(rows, attention_mask, strict=True)]
        new = torch.tensor([tokens + [0] * (max_new_tokens - len(tokens)) for tokens in new])
        logits_processor(input_ids, torch.zeros(len(rows), self.vocabulary))
        return torch.cat([input_ids, new], 1)


def score_of(task, says, vocabulary):
    system = System(lambda prompt: says(prompt) if prompt in {s.prompt for s in task.samples} else None, vocabulary)
    return float(score_samples(system, task.samples).mean())
