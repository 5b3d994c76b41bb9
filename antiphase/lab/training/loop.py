"""The training loop: one run from settings to a saved model, resumable at any step and bit-exact on a CPU."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from antiphase.base.errors import DivergedError, InputError, Interrupted, NonFiniteError
from antiphase.base.folders.contents import check_content, check_start, keep_model
from antiphase.base.folders.holders import confirm_held
from antiphase.base.folders.permissions import share_weights
from antiphase.base.memory import keep_freed_memory
from antiphase.base.records import DEQUANTIZED, Record, finite, write_atomically, writing
from antiphase.lab.scoring.division import Divide
from antiphase.lab.settings.presets import RunSettings, TrainingSettings
from antiphase.lab.text.prepare import PreparedData
from antiphase.lab.training.checkpoint import Progress, checkpoints, load_checkpoint, save_checkpoint
from antiphase.lab.training.device import autocast_dtype, choose_device
from antiphase.lab.training.distributed import Processes, is_restarted, processes
from antiphase.lab.training.divided_checkpoint import DividedCheckpoints
from antiphase.lab.training.divided_files import export
from antiphase.lab.training.objective import NextTokenLoss, predictions
from antiphase.lab.training.optimizer import build_optimizer, learning_rate
from antiphase.lab.training.run_folder import (
    CURVE,
    RUN_KEY,
    MetricsLog,
    check_diverged,
    check_progress,
    diverged_message,
    last_metrics,
    open_run,
    run_digest,
)
from antiphase.lab.training.run_model import (
    attention_only,
    build_model,
    check_dex,
    check_settings,
    fitted,
    lambdas,
    layers_of,
    starting_model,
)
from antiphase.lab.training.sharding import at_rest, own_part, whole
from antiphase.lab.training.stages import Stage
from antiphase.lab.training.stops import Stops, noted
from antiphase.lab.training.trained import restrict
from antiphase.layers.registry import set_training_step
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.sources.models import ORIGIN, is_finite

Evaluation = Callable[[PreTrainedModel, Divide], Mapping[str, float]]
"""A held-out measurement during training: takes a model, and how the processes of the run divide its forward passes;
returns named numbers, equal in all processes.
"""


FINAL = ("loss", "accuracy")
"""Results at the end of a run in its record; None if it diverged."""

PAGE_ACCURACY = "page_accuracy"
"""First-query accuracy on held-out pages, in a point of the curve."""
UNMEASURED = {"step", "train_loss"}
"""Names in a point of the curve whose measurement was interrupted."""
TELL_SECONDS = 0.5
"""Between two reports of a measurement on held-out data."""

Reporter = Callable[[int, Mapping[str, Any]], None]
"""Reports progress: called with the number of finished steps and the values to show."""


def train(
    settings: RunSettings,
    data: PreparedData,
    output: Path,
    *,
    evaluations: Mapping[str, Evaluation],
    page_evaluations: Mapping[int, Evaluation] | None = None,
    resume: bool = False,
    report: Reporter = lambda step, values: None,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Train one model and write it to ``output``: weights, tokenizer, settings, metrics, checkpoint and record.

    Args:
        settings: settings of the run, including the seed.
        data: data that the caller prepared from the same settings.
        output: a new folder or, with ``resume``, the folder of this run. The caller holds it (``only_one``).
        evaluations: called every ``training.evaluate_every`` steps and at the end; their numbers form the curve.
        page_evaluations: with ``data.lengths``, by each length below that of a row: gives the accuracy on held-out
            pages of it, by the name ``PAGE_ACCURACY``. A run calls the one of its present length with the others.
        resume: continue from the last checkpoint.
        report: called at every logged step.
        say: called with a message if a damaged checkpoint is skipped.

    Returns:
        The record of kind "train", also saved as ``record.json``.

    Raises:
        InputError: the folder or settings cannot be used.
        DivergedError: the loss, gradient, weights or held-out loss are not finite, or were not before ``resume``. The
            record gives the step; the last checkpoint is kept.
        Interrupted: a signal or the end of torchrun stopped the run; ``resume`` continues it.
    """
    training = settings.training
    begins = not checkpoints(output)
    check_settings(settings, data.tokenizer, begins=begins)
    device = choose_device(training.device)
    if training.threads:
        torch.set_num_threads(training.threads)
    if device.type == "cpu":
        keep_freed_memory()
    with processes(device, training) as group:
        if training.batch_size < group.shares:
            raise InputError(
                f"training.batch_size ({training.batch_size}) is too small for {group.shares} processes with sequences "
                "of their own; raise it, or start fewer processes"
            )
        with group.agreeing():
            if group.is_first:
                open_run(output, settings, resume=resume or is_restarted())
                check_diverged(output)
                check_content(output, data.content)
                if begins and training.start_from is not None:
                    check_start(output, Checkpoint(training.start_from).digest())
        group.check_storage(output)
        return _Run(settings, data, output, evaluations, page_evaluations or {}, report, say, group).execute()


class _Run:
    def __init__(
        self,
        settings: RunSettings,
        data: PreparedData,
        output: Path,
        evaluations: Mapping[str, Evaluation],
        page_evaluations: Mapping[int, Evaluation],
        report: Reporter,
        say: Callable[[str], None],
        group: Processes,
    ) -> None:
        self.settings, self.training, self.output, self.report = settings, settings.training, output, report
        self.evaluations, self.group, self.device, self.data = evaluations, group, group.device, data
        self.page_evaluations, self.say = page_evaluations, (say if group.is_first else lambda message: None)
        self.stream = data.stream(batch_size=self.training.batch_size, seed=self.training.seed)
        if checkpoints(output):  # the checkpoint's weights replace these
            model = build_model(settings, data.tokenizer, seed=self.training.seed)
        else:
            model = starting_model(settings, data.tokenizer)
            check_dex(model)
        self.model = fitted(model, self.training)
        self.adapted = restrict(self.model, self.training)
        self.autocast = autocast_dtype(self.training, self.device)
        group.place(self.model, self.autocast)
        self.objective = group.wrap(NextTokenLoss(self.model, group.exchange, equal_rows=settings.data.equal_rows))
        self.optimizer = build_optimizer(self.model, self.training)
        found = load_checkpoint(output, self.model, self.optimizer, say=self.say, group=group)
        if found is not None:
            check_progress(output, found)
        self.stops = Stops()
        origin = getattr(model.config, ORIGIN, None)
        begun = [Stage(length=length, step=0) for length in settings.data.lengths[:1]]
        precision = str(self.autocast or self.model.dtype).removeprefix("torch.")
        self.progress = found or Progress(
            step=0, seconds=0.0, tokens=0, curve=[], precision=precision, run=run_digest(output),
            dequantized_from=origin, stages=begun,
        )  # fmt: skip
        if self.progress.precision != precision:
            raise InputError(
                f"--output {output}: this run was trained in {self.progress.precision} so far, and "
                f"training.precision={self.training.precision} means {precision} on this machine; continue on one like "
                "the first"
            )
        limit = self.training.hang_limit
        self.divided = (
            None if group.mesh is None else DividedCheckpoints(output, self.model, self.optimizer, group, limit)
        )
        self.log = MetricsLog(output, step=self.progress.step, run=self.progress.run) if group.is_first else None
        wants_board = self.training.tensorboard and group.is_first
        self.board = _tensorboard(output, self.progress.step) if wants_board else None

    def execute(self) -> Record:
        training, progress = self.training, self.progress
        with noted(self.stops), self.divided or nullcontext():
            set_training_step(self.model, progress.step)
            if progress.step == 0 and not progress.curve:
                self._evaluate(train_loss=None)
            elif progress.curve and progress.curve[-1].keys() == UNMEASURED:  # stopped while this point was measured
                self._evaluate(progress.curve.pop()["train_loss"])
            while progress.step < training.steps:
                started = time.perf_counter()
                values = self._step(progress.step)
                progress.step += 1
                set_training_step(self.model, progress.step)
                progress.seconds += time.perf_counter() - started
                last = progress.step == training.steps
                if progress.step % training.log_every == 0 or last:
                    self._log(values)
                if progress.step % training.evaluate_every == 0 or last:
                    self._evaluate(train_loss=values["loss"])
                stop = self.group.any(self.stops.requested)
                if progress.step % training.checkpoint_every == 0 or last or stop:
                    self._save()
                if stop and not last:
                    raise self._interrupted()
        return self._finish()

    def _step(self, step: int) -> dict[str, Any]:
        """Take one optimizer step and return the values to log.

        Raises:
            DivergedError: the loss or gradient is not finite; weights and optimizer are unchanged.
        """
        training = self.training
        self.group.tick(f"step {step + 1}")
        rate = learning_rate(step, training)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        batch = self.stream.batch(step, self.progress.page_length)
        self.progress.tokens += batch.input_ids.numel()
        predicted = predictions(batch.labels)  # of the whole batch, over all processes
        count = int((predicted > 0).sum() if self.settings.data.equal_rows else predicted.sum())
        kinds = None if self.group.mesh is None or batch.pages is None else batch.pages.unique().tolist()
        passes = self.group.passes(batch.input_ids, batch.labels, training.micro_batch_size, batch.pages)
        total = torch.zeros((), device=self.device, dtype=torch.promote_types(self.model.dtype, torch.float32))
        self.group.tick(f"the computation of step {step + 1}")
        for index, (ids, targets, pages) in enumerate(passes):
            self.group.go_on(f"forward pass {index + 1} of step {step + 1}")
            with self.group.accumulating(self.objective, is_last=index == len(passes) - 1):
                with self._precision():
                    given = [one.to(self.device) for one in (ids, targets, pages)]
                    loss = self.objective(*given, kinds or pages.unique().tolist()) / count
                # Gradients are averaged over the processes, but the loss is a sum over them.
                (loss * self.group.averaged).backward()
            total += loss.detach()
        norms = self._gradient_norms() if (step + 1) % training.log_every == 0 or step + 1 == training.steps else None
        norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)).item()
        loss_found = self.group.total(total).item()
        values = {"loss": loss_found, "learning_rate": rate, "gradient_norm": norm, "gradient_norms": norms}
        for what, number in (("loss", loss_found), ("gradient norm", norm)):  # the same in all processes
            if not math.isfinite(number):
                self.progress.step = step + 1
                self._log(values)
                raise self._diverged(f"its {what} is {number}", values)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return values

    def _diverged(self, reason: str, values: Mapping[str, Any]) -> DivergedError:
        """Create the error to raise, and write the record that studies and ``resume`` read, but no weights."""
        told = {name: values.get(name) for name in ("loss", "gradient_norm")}
        found = {"step": self.progress.step, "reason": reason, **told}
        self.progress.note_memory(self.device)
        values = {**self._values(), "final": dict.fromkeys(FINAL), "diverged": found}
        if self.group.is_first:
            self._record(values)
        self.group.wait()
        return DivergedError(diverged_message(self.output, self.progress.step, reason))

    def _check_weights(self) -> None:
        """Check the weights before they are evaluated or saved: the last step may have made them infinite."""
        broken = next((name for name, one in self.model.named_parameters() if not is_finite(own_part(one))), None)
        if self.group.any(broken is not None):
            raise self._diverged(f"its weights {broken or 'in another process'} are not finite", {})

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    def _gradient_norms(self) -> list[float]:
        """Norm of each layer's gradient before clipping."""
        none = torch.zeros(())
        return [
            torch.stack([whole(p.grad.float().norm()) for p in layer if p.grad is not None] or [none]).norm().item()
            for layer in layers_of(self.model)
        ]

    def _log(self, values: dict[str, Any]) -> None:
        progress = self.progress
        line = {
            "step": progress.step,
            **values,
            "lambdas": lambdas(self.model),
            "tokens": progress.tokens,
            "tokens_per_second": progress.tokens / max(progress.seconds, 1e-9),
            "seconds": progress.seconds,
        }
        if progress.page_length is not None:
            line["page_length"] = progress.page_length
        if self.log is not None:
            self.log.write(finite(line))
        self._to_board(line)
        self.report(progress.step, line)

    def _evaluate(self, train_loss: float | None) -> None:
        """Evaluate on held-out data; the processes divide the forward passes."""
        self._check_weights()
        self.model.eval()
        point: dict[str, Any] = {"step": self.progress.step, "train_loss": train_loss}
        length = self.progress.page_length
        evaluations = dict(self.evaluations)
        if is_paged := length not in (None, self.settings.data.sequence_length):
            evaluations["pages"] = self.page_evaluations[length]
        try:
            with torch.no_grad(), self._precision(), self._interruptible():
                for name, evaluate in evaluations.items():
                    with self._reporting_tokens(name):
                        point.update(evaluate(self.model, self.group.divide))
        except NonFiniteError as error:
            raise self._diverged(f"held out, {error}", {"loss": train_loss}) from None
        except Interrupted:
            if self.progress.step:
                self.progress.curve.append({name: point[name] for name in UNMEASURED})
                self._write_checkpoint()
            raise self._interrupted() from None
        finally:
            at_rest(self.model)
        self.model.train()
        if is_paged:
            point["page_length"] = length
            if self.progress.step < self.training.steps:
                self._advance(point[PAGE_ACCURACY])
        self.progress.curve.append(finite(point))
        if self.group.is_first:
            confirm_held()
            write_atomically(self.output / CURVE, json.dumps(self.progress.curve).encode())
        self._to_board({f"evaluation/{name}": value for name, value in point.items()} | {"step": point["step"]})
        self.report(self.progress.step, {"evaluation": point})

    def _advance(self, accuracy: float) -> None:
        """Begin the next stage, in all processes, if the accuracy on pages of this length is high enough."""
        settings, progress = self.settings.data, self.progress
        if not self.group.any(accuracy > settings.length_threshold):
            return
        following = settings.lengths[settings.lengths.index(progress.stages[-1].length) + 1]
        progress.stages.append(Stage(length=following, step=progress.step))
        self.say(f"retrieval sequences have {following} tokens from step {progress.step + 1} on")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Within the block, a single process stops at once when asked to; ``resume`` repeats the measurement."""
        if self.group.count > 1:  # the others would wait for this one
            yield
            return
        self.stops.at_once = True
        try:
            if self.stops.requested:
                raise Interrupted
            yield
        except RuntimeError:  # what PyTorch's compiler makes of Interrupted
            if not self.stops.requested:
                raise
            raise Interrupted from None
        finally:
            self.stops.at_once = False

    @contextmanager
    def _reporting_tokens(self, evaluation: str) -> Iterator[None]:
        """Report the number of tokens that the model has read within the block, at most every ``TELL_SECONDS``."""
        read, told = 0, 0.0

        def count(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            nonlocal read, told
            self.group.tick(f"evaluation after step {self.progress.step}")
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                self.report(self.progress.step, {"measuring": evaluation, "tokens": read})
            read += named["input_ids"].numel() if "input_ids" in named else arguments[0].numel()

        handle = self.model.base_model.register_forward_pre_hook(count, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _interrupted(self) -> Interrupted:
        step, steps = self.progress.step, self.training.steps
        return Interrupted(f"stopped after step {step} of {steps}" if step else f"stopped before step 1 of {steps}")

    def _to_board(self, values: Mapping[str, Any]) -> None:
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and name != "step":
                    self.board.add_scalar(name, value, values["step"])

    def _save(self) -> None:
        self._check_weights()
        self.group.tick(f"the checkpoint of step {self.progress.step}")
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, or begin to; the block of ``execute`` waits until it is complete."""
        self.progress.note_memory(self.device)
        if self.divided is not None:
            self.divided.save(self.progress)
            return
        if self.group.is_first:
            save_checkpoint(self.output, self.model, self.optimizer, self.progress)
        self.group.wait()

    def _finish(self) -> Record:
        """Write the model in Hugging Face's format and the record, in the first process; return the record in all."""
        if self.adapted is not None:
            self.adapted.merge_and_unload()
        if self.progress.dequantized_from is not None:
            setattr(self.model.config, ORIGIN, self.progress.dequantized_from)  # a resumed run has not read it
        self.group.tick("writing the model")
        confirm_held()
        if self.group.mesh is not None:
            export(self.model, self.output, self.group.rank, self.group.count)
        elif self.group.is_first:
            with writing(self.output):
                self.model.save_pretrained(self.output)
        self.group.wait()
        values = self._values()
        if self.group.is_first:
            with writing(self.output):
                self.data.tokenizer.save_pretrained(self.output)
            share_weights(self.output)
            keep_model(self.output)
            self._record(values)
        self.group.wait()
        return Record.load(self.output)

    def _values(self) -> dict[str, Any]:
        return run_values(self.model, self.progress, self.output, self.training)

    def _record(self, values: dict[str, Any]) -> None:
        origin = self.progress.dequantized_from
        Record(
            kind="train",
            config=finite(self.settings) | ({DEQUANTIZED: {self.training.start_from: origin}} if origin else {}),
            seeds=[self.training.seed],
            seconds=self.progress.seconds,
            values=values,
        ).save(self.output)


def run_values(model: PreTrainedModel, progress: Progress, output: Path, training: TrainingSettings) -> dict[str, Any]:
    """The values of a run's record."""
    last = last_metrics(output)
    curve = progress.curve
    scored = [point for point in curve if point.get("accuracy") is not None]
    best = max(scored, key=lambda point: point["accuracy"]) if scored else None
    return {
        "folder": output.name,
        "seed": training.seed,
        "learning_rate": training.learning_rate,
        "parameters": model.num_parameters(),
        "attention_only": attention_only(model),
        "tokens": progress.tokens,
        "tokens_per_second": progress.tokens / max(progress.seconds, 1e-9),
        "seconds": progress.seconds,
        "peak_memory": progress.peak_memory,
        "peak_gpu_memory": progress.peak_gpu_memory,
        "precision": progress.precision,
        "final": {name: curve[-1].get(name) if curve else None for name in FINAL},
        "best": None if best is None else {"accuracy": best["accuracy"], "step": best["step"]},
        "curve": curve,
        "stages": progress.stages,
        "lambdas": lambdas(model),
        "gradient_norms": last.get("gradient_norms") if last else None,
        "diverged": None,
        RUN_KEY: progress.run,
    }


def _tensorboard(output: Path, step: int) -> Any:
    """A log for TensorBoard, which forgets what it has of later steps than this one."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(output / "tensorboard"), purge_step=step + 1)
