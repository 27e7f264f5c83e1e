"""One-line faults in formulas, gates, readers and checks; the tests must catch each of them.

    python benchmarks/faults.py --only metrics calib-3
    python benchmarks/faults.py --whole          # run all tests instead of the named ones

Each fault is written into a copy of the checkout, and its tests run there in a forked process. If its file was renamed,
the fragment locates the file. Status 1 if a fault was missed or could not be tried: its fragment or tests are gone, or
the tests fail without it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
APART = ("tests", "benchmarks", "docs", "examples", ".ci", "runtime/cpp/tests", "runtime/cpp/fuzz")
CODE = (".py", ".cpp", ".h")
RUNNER = ".build/cmake/release/runtime/cpp/hydrant-run"
PRELOADED = (
    "pytest", "_pytest.assertion.rewrite", "hypothesis", "numpy", "torch", "onnx", "onnxruntime", "safetensors.torch",
    "scipy.stats", "sklearn.metrics", "tokenizers", "PIL.Image", "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert", "transformers.models.vit.modeling_vit",
)  # fmt: skip
"""Modules imported once for all runs; the product does not change them."""


class Fault(NamedTuple):
    """Fragment of a file, its replacement, and tests that must fail: files or node ids below ``tests/``."""

    name: str
    path: str
    tests: str
    old: str
    new: str


# fmt: off
FAULTS = [
    Fault("metrics-1", "metrics/class_metrics.py", "test_metrics.py::test_class_metrics_agree_with_sklearn",
          "terms: np.ndarray = (precise**2).sum(axis=1) - 2 * precise",
          "terms: np.ndarray = (precise**2).sum(axis=1) + 2 * precise"),
    Fault("metrics-2", "metrics/class_metrics.py", "test_metrics.py::test_selective_metrics_by_their_definitions",
          "return max(1, math.ceil(coverage * count - 1e-9))",
          "return max(1, math.floor(coverage * count - 1e-9))"),
    Fault("metrics-3", "metrics/class_metrics.py", "test_metrics.py::test_edge_of_a_bin_belongs_below",
          "np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)",
          "np.clip(np.floor(confidence * bins).astype(int), 0, bins - 1)"),
    Fault("metrics-4", "metrics/class_metrics.py", "test_metrics.py::test_fpr95_may_miss_just_five_percent",
          "positives[:, None] >= 0.95, axis=1)",
          "positives[:, None] > 0.95, axis=1)"),
    Fault("metrics-5", "metrics/uncertainty.py", "test_numerics.py::test_extreme_logits_of_classes",
          "total = np.maximum(np.minimum(entropy(mean), highest), expected)",
          "total = np.minimum(entropy(mean), highest)"),
    Fault("metrics-6", "metrics/uncertainty.py", "test_thresholds.py::test_conformal_sets_cover_exchangeable_data",
          "middle = np.cumsum(ranked, axis=1) - ranked / 2",
          "middle = np.cumsum(ranked, axis=1) + ranked / 2"),
    Fault("metrics-7", "metrics/class_metrics.py", "test_metrics.py::test_the_error_of_a_difference_of_areas_by_pairs",
          "within = _below(-negative, -positive) - _below(-other_negative, -other_positive)",
          "within = _below(-negative, -positive) + _below(-other_negative, -other_positive)"),
    Fault("metrics-8", "metrics/uncertainty.py", "test_metrics.py::test_divergence_and_disagreement_by_pairs",
          "return 1 - alike / (members * (members - 1))",
          "return 1 - alike / members**2"),
    Fault("metrics-9", "metrics/labels.py", "test_thresholds.py::test_the_threshold_has_the_best_f1",
          "scores = 2 * hits[ends] / (ends + 1 + labels.sum())",
          "scores = 2 * hits[ends] / (ends + labels.sum())"),
    Fault("metrics-10", "metrics/scores.py", "test_task_evaluation.py::test_ties_gain_nothing",
          "order: np.ndarray = np.lexsort((relevance, -np.asarray(scores, np.float64)))",
          "order: np.ndarray = np.lexsort((-relevance, -np.asarray(scores, np.float64)))"),
    Fault("metrics-11", "metrics/class_metrics.py",
          "test_metrics.py::test_counted_scores_give_what_the_library_gives_of_the_drawn",
          'self._before = np.searchsorted(keys, values, side="left")',
          'self._before = np.searchsorted(keys, values, side="right")'),
    Fault("metrics-12", "metrics/class_metrics.py",
          "test_metrics.py::test_selective_metrics_by_their_definitions",
          "/ size**2,",
          "/ size,"),
    Fault("metrics-13", "metrics/scores.py", "test_thresholds.py::test_rank_correlations_are_scipys",
          "((ends - 1 + ends - counts) / 2)[places]",
          "(ends - 1)[places]"),
    Fault("metrics-14", "metrics/scores.py", "test_thresholds.py::test_the_scale_is_the_most_likely_one",
          "np.asarray(errors, np.float64) ** 2 / total)",
          "np.asarray(errors, np.float64) ** 2 * total)"),
    Fault("metrics-15", "metrics/spans.py", "test_tokens.py::test_spans_are_those_of_seqeval",
          'prefix in "BSO" or name != kind',
          'prefix in "BSO"'),
    Fault("metrics-16", "metrics/class_metrics.py", "test_metrics.py::test_selective_metrics_by_their_definitions",
          "more * (size - (start + end) / 2.0)",
          "more * (size - end)"),
    Fault("metrics-17", "monitoring/drift_statistics.py", "test_drift.py::test_the_evidence_is_the_mixture_written_out",
          "self.limit = 1 / level",
          "self.limit = 1 - level"),
    Fault("metrics-18", "monitoring/drift_statistics.py", "test_drift.py::test_the_stability_index_by_hand",
          "return float(((q - p) * np.log(q / p)).sum())",
          "return float((q * np.log(q / p)).sum())"),
    Fault("metrics-19", "metrics/gates.py", "test_verify.py::test_gates_judge_each_figure",
          "least, bool(value >= least))",
          "least, bool(value <= least))"),
    Fault("metrics-20", "tasks/classification.py", "test_verify.py::test_gates_judge_each_figure",
          "tied = best[:, 1] - best[:, 0] <= 2 * tolerances.probability",
          "tied = best[:, 1] - best[:, 0] >= 2 * tolerances.probability"),
    Fault("metrics-21", "tasks/multi_label.py", "test_labels.py::test_low_precision_follows_the_reference",
          "(p > 0.5) != (q > 0.5)",
          "(p > 0.5) & (q > 0.5)"),
    Fault("metrics-22", "metrics/timing.py",
          "test_profile.py::test_every_round_runs_every_case_once_and_starts_with_the_next",
          "case = (turn + step) % len(runs)",
          "case = step % len(runs)"),
    Fault("metrics-23", "metrics/uncertainty.py",
          "test_baseline_scores.py::test_scores_of_logits_by_their_definitions",
          "** GAMMA).sum(axis=1)",
          "* GAMMA).sum(axis=1)"),
    Fault("data-1", "data/audio.py", "test_spectrograms.py::test_tensors_are_those_of_transformers",
          "energies = _energies((frames - 0.97 * before) * np.hanning(WIDTH), 512)",
          "energies = _energies((frames + 0.97 * before) * np.hanning(WIDTH), 512)"),
    Fault("data-2", "data/audio.py", "test_spectrograms.py::test_tensors_are_those_of_transformers",
          "[::HOP][:-1]",
          "[::HOP]"),
    Fault("data-3", "data/batching.py", "test_tune.py::test_an_epoch_is_judged_at_its_best_temperature",
          "return [batches[index] for index in rng.permutation(len(batches))]",
          "return batches"),
    Fault("data-4", "data/label_encoding.py", "test_labels.py::test_labels_that_cannot_be_read",
          "if len(set(indices)) < len(indices):",
          "if len(set(indices)) > len(indices):"),
    Fault("data-5", "data/label_encoding.py",
          "test_tokens.py::test_taylor_scores_are_slopes_of_the_mean_loss_of_a_text",
          "np.where(inside, starts, 0), axis=1), IGNORED)",
          "np.where(inside, starts, 0), axis=1), 0)"),
    Fault("data-6", "data/label_encoding.py", "test_words.py::test_invalid_tags_are_rejected",
          "if len(listed) != (count := units(item)):",
          "if len(listed) < (count := units(item)):"),
    Fault("data-7", "data/corruptions.py", "test_evaluate.py::test_images_depart_further_with_severity",
          "_bytes(_unit(image) + BRIGHTNESS[level])",
          "_bytes(_unit(image) * BRIGHTNESS[level])"),
    Fault("data-8", "data/data_files.py", "test_data.py::test_texts_of_an_npz_file_that_are_no_characters_are_refused",
          ".max() > sys.maxunicode:",
          ".max() < 0:"),
    Fault("data-9", "data/fingerprints.py",
          "test_overlap.py::test_shares_of_many_examples_are_estimated_from_a_bounded_record",
          "alike = [number for number in self.hashes if earlier.complete or number <= earlier.hashes[-1]]",
          "alike = list(self.hashes)"),
    Fault("data-10", "data/fingerprints.py", "test_overlap.py::test_records_of_two_uses_join",
          "both = sorted(number for number in {*self.hashes, *other.hashes} if number <= min(ends, default=number))",
          "both = sorted({*self.hashes, *other.hashes})"),
    Fault("bundle-1", "bundle/manifest.py", "test_files_and_bundle.py::test_malformed_manifest_is_refused",
          "sha256: Annotated[str, Meta(min_length=64, max_length=64)]",
          "sha256: Annotated[str, Meta(max_length=64)]"),
    Fault("bundle-2", "bundle/manifest.py", "test_files_and_bundle.py::test_malformed_manifest_is_refused",
          "members: Annotated[int, Meta(ge=1, le=2**20)]",
          "members: Any"),
    Fault("bundle-3", "bundle/manifest.py", "test_files_and_bundle.py::test_add_refuses_names_outside_the_folder",
          '".." in path.parts or "\\\\" in name',
          '"\\\\" in name'),
    Fault("bundle-4", "bundle/manifest.py",
          "test_platforms.py::test_manifests_that_other_systems_read_otherwise_are_refused",
          'normalize("NFC", name).casefold())',
          'normalize("NFC", name))'),
    Fault("bundle-5", "bundle/store.py", "test_files_and_bundle.py::test_altered_file_is_refused",
          "if digest != expected:",
          "if len(digest) != len(expected):"),
    Fault("bundle-6", "bundle/store.py", "test_files_and_bundle.py::test_link_that_leaves_the_folder_is_refused",
          "if not path.is_file() or not contains(self.path, path):",
          "if not path.is_file():"),
    Fault("hub-1", "bundle/hub_download.py", "test_hub.py::test_links_into_the_cache_are_followed_and_others_rejected",
          "return any(target.is_relative_to(place) for place in places)",
          "return any(target.is_relative_to(place) for place in places) or Snapshot.of(inside) is not None"),
    Fault("hub-2", "bundle/hub_download.py", "test_hub.py::test_paths_never_reach_the_hub",
          "if not isinstance(bundle, str) or folder.exists() or not REPOSITORY.fullmatch(bundle):",
          "if folder.exists() or not REPOSITORY.fullmatch(folder.as_posix()):"),
    Fault("hub-3", "hub/repository_files.py", "test_hub_readers.py",
          'keeps = token_types and settings.get("tokenizer_class")',
          'keeps = False and settings.get("tokenizer_class")'),
    Fault("hub-4", "export/task_heads.py", "test_logits.py",
          'graph.constant(1.0, np.float32), mean], "logits.without")',
          'graph.constant(2.0, np.float32), mean], "logits.without")'),
    Fault("bundle-7", "bundle/calibration.py", "test_calibrate.py::test_malformed_calibrations_are_refused",
          'if entry.get("side", side) != side:',
          'if entry.get("side", side) not in SIDES.values():'),
    Fault("bundle-8", "bundle/calibration.py", "test_labels.py::test_a_calibration_of_labels_is_read_again_and_checked",
          "if labels is not None and not len(labels.temperatures) == len(labels.thresholds) == count:",
          "if labels is not None and not len(labels.temperatures) == len(labels.thresholds):"),
    Fault("bundle-9", "bundle/staging.py",
          "test_older_bundles.py::test_an_interrupted_write_of_0_2_0_is_finished_or_undone",
          "elif name in entry.fresh:",
          "elif name in entry.gone:"),
    Fault("bundle-10", "bundle/staging.py",
          "test_older_bundles.py::test_an_interrupted_write_of_0_2_0_is_finished_or_undone",
          "(_forward if entry.forward else _back)(folder, stage, entry)",
          "_forward(folder, stage, entry)"),
    Fault("bundle-11", "bundle/density_file.py", "test_distance.py::test_a_density_that_is_not_this_bundles_is_refused",
          "if facts.weights_sha256 != bundle.digests().get(WEIGHTS, facts.weights_sha256):",
          "if not facts.weights_sha256:"),
    Fault("bundle-12", "bundle/density_file.py", "test_distance.py::test_a_density_that_is_not_this_bundles_is_refused",
          "if not all((scale > 0).all() for scale in scales):",
          "if not all((scale >= 0).all() for scale in scales):"),
    Fault("bundle-13", "bundle/calibration.py", "test_drift.py::test_references_that_are_malformed",
          "if self.count > self.n:",
          "if self.count < 0:"),
    Fault("bundle-14", "bundle/graphs.py", "test_consistency.py::test_a_graph_that_contradicts_its_bundle",
          '"hydrant.labels": (MANIFEST, bundle.labels, json.loads),',
          '"hydrant.labels": (MANIFEST, bundle.labels, lambda _: bundle.labels),'),
    Fault("bundle-15", "bundle/head_plan.py", "test_plan.py::test_lists_become_tuples",
          "return len({keep[layer] for keep in self.members}) == 1",
          "return len({keep[layer] for keep in self.members}) >= 1"),
    Fault("bundle-16", "bundle/signature.py", "test_signature.py::test_what_was_altered_since_is_refused",
          "if path.is_file() and name not in listed:",
          "if path.is_file() and not listed:"),
    Fault("bundle-17", "bundle/architecture.py", "test_modernbert.py::test_module_and_graphs_match_the_oracle",
          "np.arange(0, head_width, 2, dtype=np.float64) / head_width",
          "np.arange(0, head_width, 2, dtype=np.float64) / (head_width // 2)"),
    Fault("bundle-18", "bundle/traced.py", "test_traced.py::test_a_malformed_description_is_refused",
          '"classes": (model.classes == 1) if score else model.classes > 1,',
          '"classes": (model.classes == 1) if score else model.classes > 0,'),
    Fault("families-1", "models/functions.py", "test_modernbert.py::test_module_and_graphs_match_the_oracle",
          "return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)",
          "return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)"),
    Fault("families-2", "models/functions.py", "test_modernbert.py::test_module_and_graphs_match_the_oracle",
          "near = (apart <= window)[None, None]",
          "near = (apart < window)[None, None]"),
    Fault("families-3", "models/functions.py", "test_parity.py::test_unequal_prunings_of_one_checkpoint",
          "mean = x[..., architecture.prefix_tokens :, :].mean(dim=-2)",
          "mean = x.mean(dim=-2)"),
    Fault("families-4", "models/lora.py", "test_lora.py::test_members_are_those_of_peft",
          'alpha / (math.sqrt(rank) if config.use_rslora else rank)',
          "alpha / rank"),
    Fault("families-5", "models/zero_shot.py", "test_clip.py::test_logits_are_those_of_clip_model",
          "clip.logit_scale.detach().exp() * embeddings",
          "clip.logit_scale.detach() * embeddings"),
    Fault("tracing-1", "models/tracing/slices.py", "test_traced.py::test_a_declared_family_traced_is_the_same_ensemble",
          "flags[list(kept)] = 1",
          "flags[list(kept)] = 2"),
    Fault("cost-1", "models/plan_cost.py", "test_cost.py::test_figures_are_those_of_the_graph",
          "deep = Figures(*(len(plan.members) * figure for figure in asdict(plain).values()))",
          "deep = Figures(*(len(plan.members) * figure for figure in asdict(single).values()))"),
    Fault("cost-2", "models/graph_counts.py", "test_cost.py::test_figures_are_those_of_the_graph",
          "return 2 * self.batch * self.rows * self.inner * self.columns",
          "return self.batch * self.rows * self.inner * self.columns"),
    Fault("engines-1", "engines/metadata.py", "test_build.py::test_malformed_metadata_is_rejected",
          "Meta(gt=0)",
          "Meta(ge=0)"),
    Fault("fusion-1", "fusion/output_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_predict_what_they_predicted",
          "energy=-torch.logsumexp(logits, dim=-1).mean(dim=0),",
          "energy=torch.logsumexp(logits, dim=-1).mean(dim=0),"),
    Fault("fusion-2", "fusion/output_heads.py",
          "test_older_bundles.py::test_older_bundles_predict_what_they_predicted",
          "disagreement=(members.argmax(dim=-1) != label).float().mean(dim=0),",
          "disagreement=(members.argmax(dim=-1) != label).float().amax(dim=0),"),
    Fault("fusion-3", "fusion/output_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_predict_what_they_predicted",
          "return ((squared - location) / scale).mean(dim=0)",
          "return ((squared - location) / scale).amax(dim=0)"),
    Fault("fusion-4", "fusion/grouped.py", "test_parity.py::test_unequal_prunings_of_one_checkpoint",
          "mask = mask[:, :, : query.shape[2]]",
          "mask = mask[:, :, query.shape[2] :]"),
    Fault("fusion-5", "fusion/grouped.py", "test_older_bundles.py::test_older_bundles_predict_what_they_predicted",
          "query = (query.transpose(1, 2) * self.head_width**-0.5 @ key",
          "query = (query.transpose(1, 2) * self.head_width**0.5 @ key"),
    Fault("fusion-6", "fusion/grouped.py", "test_fusion.py::test_merged_parts_are_means_and_attention_stays_apart",
          ".all(dim=0, keepdim=True), stacked.mean(dim=0, keepdim=True))",
          ".all(dim=0, keepdim=True), stacked[:1])"),
    Fault("fusion-7", "fusion/module.py", "test_parity.py::test_unequal_prunings_of_one_checkpoint",
          "return _rows(table, real.cumsum(dim=1) * real + self.position_padding)",
          "return _rows(table, real.cumsum(dim=1) * real)"),
    Fault("fusion-8", "fusion/module.py", "test_modernbert.py::test_module_and_graphs_match_the_oracle",
          "(hidden * gate[0] if self.gated else hidden)",
          "(self.activation(gate[0]) * inner if self.gated else hidden)"),
    Fault("fusion-9", "fusion/output_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_predict_what_they_predicted",
          "energy=-torch.nn.functional.softplus(member_logits.float()).sum(dim=-1).mean(dim=0),",
          "energy=-torch.nn.functional.softplus(logits).sum(dim=-1).mean(dim=0),"),
    Fault("fusion-10", "fusion/output_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_predict_what_they_predicted",
          "variance = (members - mean).square().mean(dim=0)",
          "variance = (members - mean).square().sum(dim=0)"),
    Fault("fusion-11", "fusion/low_rank.py", "test_lora.py::test_members_are_those_of_peft",
          "return update.scale * (update.up.double() @ update.down.double())",
          "return update.up.double() @ update.down.double()"),
    Fault("fusion-12", "fusion/ensemble.py", "test_parity.py::test_three_checkpoints_all_grouped_are_a_deep_ensemble",
          "if len(checkpoints) == 1 and layer < plan.fork:",
          "if layer < plan.fork:"),
    Fault("export-1", "export/rewrites.py",
          "test_older_bundles.py::test_older_bundles_export_to_a_graph_that_gives_what_theirs_gave",
          "shift = norm.bias.astype(np.float64) @ whole",
          "shift = -norm.bias.astype(np.float64) @ whole"),
    Fault("export-2", "export/rewrites.py",
          "test_older_bundles.py::test_older_bundles_export_to_a_graph_that_gives_what_theirs_gave",
          "column = norm.weight.astype(np.float64).transpose(0, 2, 1)",
          "column = 1 / norm.weight.astype(np.float64).transpose(0, 2, 1)"),
    Fault("export-3", "export/quantize.py", "test_precision.py::test_int8_graph",
          '_store(graph, f"{x}.smoothing", (1 / factor).astype(np.float32))',
          '_store(graph, f"{x}.smoothing", factor.astype(np.float32))'),
    Fault("export-4", "export/quantize.py", "test_precision.py::test_int8_graph",
          "scale = np.maximum(np.abs(weight).max(axis=0) / 127, 1e-12)",
          "scale = np.maximum(np.abs(weight).max(axis=0) / 1270, 1e-12)"),
    Fault("export-5", "export/islands.py", "test_precision.py::test_large_activations_become_islands_in_fp16",
          "frozenset(reasons), reasons, source, largest",
          "frozenset(sums), reasons, source, largest"),
    Fault("export-6", "export/task_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_export_to_the_graphs_that_they_had",
          'graph.node("Max", [total, expected], "predictive_entropy")',
          'graph.node("Max", [total, total], "predictive_entropy")'),
    Fault("export-7", "export/task_heads.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_export_to_the_graphs_that_they_had",
          'graph.node("Mul", [apart, apart], "members.squared")',
          'graph.node("Mul", [apart, mean], "members.squared")'),
    Fault("export-8", "export/layers.py", "test_parity.py::test_settings_within_a_family",
          'slope = 1.702 if kind == "quick_gelu" else 1.0',
          'slope = 1.0 if kind == "quick_gelu" else 1.0'),
    Fault("export-9", "export/layers.py", "test_modernbert.py::test_module_and_graphs_match_the_oracle",
          'count = graph.node("ReduceSum", [real, axis]',
          'count = graph.node("ReduceMax", [real, axis]'),
    Fault("export-10", "export/distance_head.py",
          "test_older_bundles.py::test_bundles_of_0_2_0_export_to_the_graphs_that_they_had",
          "halves = (means.astype(np.float64) ** 2).sum(axis=2)[:, None] / 2",
          "halves = (means.astype(np.float64) ** 2).sum(axis=2)[:, None]"),
    Fault("export-11", "export/lowering.py", "test_every_task.py::test_members_are_the_original_under_hooks",
          "named = arch.prefix_tokens - arch.registers",
          "named = arch.prefix_tokens"),
    Fault("export-12", "export/dead_rows.py",
          "test_first_rows.py::test_only_the_first_token_of_the_last_layer_is_computed",
          "return [RequiredRows(left - 2, rows.count), None]",
          "return [RequiredRows(left - 2, rows.count), RequiredRows(left - 2, rows.count)]"),
    Fault("export-13", "export/dead_rows.py",
          "test_first_rows.py::test_only_the_first_token_of_the_last_layer_is_computed",
          'return int(node.attributes.get_int("axis", usual)) % len(_shape(value))',
          'return int(node.attributes.get_int("axis", usual))'),
    Fault("build-1", "build/builder_options.py", "test_build.py::test_unusable_options",
          "if not 1 <= result.least <= result.best <= result.most <= largest:",
          "if not 1 <= result.least <= result.most <= largest:"),
    Fault("build-2", "build/engine_build.py", "test_build.py::test_float32_fails_require_fused",
          "if fused < expected:",
          "if fused > expected:"),
    Fault("calib-1", "calib/decisions/temperature.py",
          "test_calibrate.py::test_temperature_against_the_oracle_and_a_grid",
          "total -= float((logsumexp(log_members) - math.log(scaled.shape[1])).sum())",
          "total -= float(logsumexp(log_members).sum())"),
    Fault("calib-2", "calib/decisions/thresholds.py", "test_thresholds.py::test_binomial_bound_by_its_definition",
          "beta_quantile(1 - delta, errors + 1, count - errors)",
          "beta_quantile(1 - delta, errors, count - errors)"),
    Fault("calib-3", "calib/decisions/thresholds.py",
          "test_thresholds.py::test_thresholds_answer_and_catch_what_they_promise",
          "return upper_bound(scores, 1 - share, SPARED, limit)",
          "return upper_bound(scores, share, SPARED, limit)"),
    Fault("calib-4", "calib/decisions/fit.py",
          "test_thresholds.py::test_intervals_hold_as_many_labels_as_the_rank_says",
          "half = np.sqrt(variance + np.float32(scale.floor)).astype(np.float64)",
          "half = np.sqrt(variance).astype(np.float64) + scale.floor"),
    Fault("calib-5", "calib/decisions/fit.py",
          "test_thresholds.py::test_labels_are_assigned_by_mistake_as_rarely_as_asked",
          "limits.append(false_alarm_threshold(values[~having], false_alarm, 1.0))",
          "limits.append(false_alarm_threshold(values[having], false_alarm, 1.0))"),
    Fault("calib-6", "calib/decisions/fit.py",
          "test_token_stages.py::test_calibration_fits_words_and_decides_for_spans",
          "truth = set(spans_in(sample.texts, [request.names[label] for label in sample.labels]))",
          "truth = set(spans)"),
    Fault("calib-7", "calib/decisions/thresholds.py",
          "test_drift.py::test_the_reference_is_what_the_predictor_says_of_the_same_examples",
          "beyond = {field: limit.beyond(scores[limit.score])",
          "beyond = {field: scores[limit.score] > limit.value"),
    Fault("calib-8", "calib/mahalanobis.py", "test_distance.py::test_fit_is_scikit_learns",
          "scatter = self._products[tap] / count - (means * (self._counts[seen, None] / count)).T @ means",
          "scatter = self._products[tap] / count - means.T @ means"),
    Fault("calib-9", "calib/mahalanobis.py", "test_distance.py::test_fit_is_scikit_learns",
          "spread = (count + 1) * (square - mean**2 / width)",
          "spread = (count + 1) * (square - mean**2)"),
    Fault("calib-10", "calib/ood_detectors.py", "test_baseline_scores.py::test_gaussians_against_scikit_learn",
          "squared[1, part] = ((rows @ self._background) ** 2)",
          "squared[1, part] = ((rows @ self._whitening) ** 2)"),
    Fault("calib-11", "calib/ood_detectors.py", "test_baseline_scores.py::test_virtual_logit_by_loops",
          "scores: np.ndarray = self._scale * self._norms(features) - logsumexp(logits.astype(np.float64))",
          "scores: np.ndarray = self._scale * self._norms(features) + logsumexp(logits.astype(np.float64))"),
    Fault("calib-12", "calib/heads/selection.py", "test_plan.py::test_noise_is_log_normal_with_the_given_spread",
          "return (drawn - drawn.mean(axis=0)) * np.sqrt(members / (members - 1))",
          "return drawn * np.sqrt(members / (members - 1))"),
    Fault("calib-13", "calib/heads/selection.py", "test_plan.py::test_heads_are_dropped_at_the_rate_and_apart",
          "stays = (drawn >= rate)",
          "stays = (drawn < rate)"),
    Fault("calib-14", "calib/heads/taylor.py",
          "test_tokens.py::test_taylor_scores_are_slopes_of_the_mean_loss_of_a_text",
          "return each.sum(dim=1) / (labels != IGNORED).sum(dim=1).clamp_min(1)",
          "return each.mean(dim=1)"),
    Fault("calib-15", "calib/heads/candidates.py", "test_budget.py::test_budget_below_every_plan_is_refused",
          "return math.ceil(ratio * 1000) / 1000",
          "return math.floor(ratio * 1000) / 1000"),
    Fault("calib-16", "calib/heads/plan_search.py", "test_circuits.py::test_a_search_that_is_refused_leaves_no_state",
          "if within(losses[-1], margin):",
          "if within(margin, losses[-1]):"),
    Fault("calib-17", "calib/heads/selection.py", "test_budget.py::test_held_out_part",
          "held_out = min(max(total // 4, MIN_HELD_OUT), MAX_HELD_OUT, total // 2)",
          "held_out = min(max(total // 4, MIN_HELD_OUT), MAX_HELD_OUT)"),
    Fault("calib-18", "calib/taps.py", "test_distance.py::test_balanced_taps_count_as_much_as_the_trunk",
          "* len(taps) / 2",
          "* len(taps)"),
    Fault("tuning-1", "tuning/optimizer.py", "test_tune.py::test_a_tuned_bundle_is_better_and_as_good_as_any",
          "else (updates - update) / (updates - rising)",
          "else (updates - update) / updates"),
    Fault("tuning-2", "tuning/optimizer.py", "test_batch_ensemble.py::test_factors_of_one_change_nothing",
          'not (name.endswith((".bias", "_factor"))',
          'not (name.endswith(".bias")'),
    Fault("tuning-3", "tuning/rank_one.py", "test_batch_ensemble.py::test_factors_are_those_of_the_paper",
          "weight.unflatten(2, (factor.shape[1], -1)) * r * s",
          "weight.unflatten(2, (factor.shape[1], -1)) * r + s"),
    Fault("tuning-4", "tuning/loop.py", "test_tune.py::test_nothing_gets_worse",
          "epochs - best_epoch(self.point.history) >= how.patience",
          "epochs - best_epoch(self.point.history) > how.patience"),
    Fault("tuning-5", "tuning/distillation.py",
          "test_teachers.py::test_the_loss_and_its_gradients_are_those_of_pytorch",
          "return softening**2 * divergences.sum()",
          "return divergences.sum()"),
    Fault("tuning-6", "tuning/taught_source.py",
          "test_teachers.py::test_each_member_comes_nearest_to_its_own_teacher",
          "mean = self._mean or self._epoch <= how.mean_epochs",
          "mean = self._mean or self._epoch >= how.mean_epochs"),
    Fault("tuning-7", "tuning/taught_source.py",
          "test_teachers.py::test_kept_logits_are_those_of_hugging_face",
          "words = self.aligned(indices) != IGNORED",
          "words = self.aligned(indices) >= IGNORED"),
    Fault("tuning-8", "tuning/tuning_data.py",
          "test_teachers.py::test_a_frozen_trunk_stays_and_its_members_learn",
          "width, file) if source.views == 1 else None",
          "width, file)"),
    Fault("tuning-9", "tuning/traced_student.py", "test_traced_tasks.py::test_only_weights_change_while_a_model_learns",
          "                module.eval()",
          "                module.train()"),
    Fault("runtime-1", "bundle/calibration.py", "test_older_bundles.py::test_older_bundles_predict_what_they_predicted",
          'scores < value if self.side == "below" else scores > value',
          "scores > value"),
    Fault("runtime-2", "runtime/collect.py", "test_evaluate.py::test_figures_against_the_oracle",
          "back = np.argsort(np.concatenate(order))",
          "back = np.concatenate(order)"),
    Fault("runtime-3", "runtime/predictor.py", "test_runtime.py::test_a_backend_that_gives_nan_is_an_error",
          "if (name := prediction.not_finite()) is not None:",
          'if (name := prediction.not_finite()) == "":'),
    Fault("runtime-4", "runtime/word_predictions.py", "test_tokens.py::test_spans_are_as_sure_as_their_least_sure_word",
          "float(prediction.confidence[part].min()),",
          "float(prediction.confidence[part].max()),"),
    Fault("runtime-5", "runtime/word_predictions.py", "test_tokens.py::test_words_take_what_their_tokens_say",
          "of[np.argmax(confidence[of])] for of in units]",
          "of[np.argmin(confidence[of])] for of in units]"),
    Fault("runtime-6", "runtime/backends/microbatch.py",
          "test_precision.py::test_microbatches_equal_the_whole_batch",
          "return max(1, round(ROWS / (tokens * self.streams)))",
          "return max(1, round(ROWS / tokens * self.streams))"),
    Fault("runtime-7", "runtime/backends/tensorrt/choose.py",
          "test_engine_runtime.py::test_an_engine_that_does_not_fit_names_the_command",
          "if facts.version != machine.version:",
          "if facts.version > machine.version:"),
    Fault("runtime-8", "runtime/backends/tensorrt/profiles.py",
          "test_engine_runtime.py::test_the_smallest_adequate_profile_is_chosen",
          "pieces = -(-rows // max(each.rows[1] for each in able))",
          "pieces = rows // max(each.rows[1] for each in able)"),
    Fault("measure-1", "monitoring/drift_monitor.py",
          "test_drift.py::test_a_watch_is_quiet_on_like_traffic_and_says_what_changed_on_other",
          "if psi[name] >= self.psi and p_values[name] <= level",
          "if psi[name] >= self.psi and p_values[name] >= level"),
    Fault("measure-2", "monitoring/drift_monitor.py",
          "test_drift.py::test_values_that_depend_on_each_other_do_not_alarm_by_that",
          "level = self.alpha * HISTOGRAMS / max(1, len(self.known)) / (self._whole * (self._whole + 1))",
          "level = self.alpha * HISTOGRAMS / max(1, len(self.known)) / self._whole"),
    Fault("measure-3", "monitoring/drift_monitor.py",
          "test_drift.py::test_a_watch_is_quiet_on_like_traffic_and_says_what_changed_on_other",
          'order = [place for place in np.argsort(-np.abs(q - p), kind="stable")[:3]',
          'order = [place for place in np.argsort(np.abs(q - p), kind="stable")[:3]'),
    Fault("measure-4", "evaluation/profiler.py", "test_profile.py::test_the_report_of_a_text_bundle",
          "None if cost is None else _flops(cost, subject.model) / cost.single.flops,",
          "None if cost is None else _flops(cost, subject.model) / cost.fused.flops,"),
    Fault("evaluation-1", "tasks/regression.py",
          "test_task_evaluation.py::test_metrics_are_those_of_the_predictions",
          "self._score - self.caution * deviation",
          "self._score + self.caution * deviation"),
    Fault("evaluation-2", "metrics/class_metrics.py",
          "test_metrics.py::test_class_metrics_agree_with_sklearn",
          "examples = np.maximum(sums[:, 0], 1)",
          "examples = np.maximum(sums[:, 1], 1)"),
    Fault("evaluation-3", "evaluation/model_reports.py",
          "test_evaluate.py::test_intervals_hold_their_values_and_repeat",
          "our_draws[name] - their_draws[name] if name",
          "our_draws[name] + their_draws[name] if name"),
    Fault("evaluation-4", "evaluation/baselines.py", "test_baselines.py::test_figures_against_the_untouched_model",
          'return {"mahalanobis": nearest, "relative_mahalanobis": nearest - background}',
          'return {"mahalanobis": nearest, "relative_mahalanobis": nearest + background}'),
    Fault("serving-1", "serving/batcher.py",
          "test_batcher.py::test_long_texts_run_together_as_far_as_their_characters_are_few",
          "if length <= TOGETHER or item is oldest]",
          "if length <= TOGETHER]"),
    Fault("serving-2", "serving/batcher.py", "test_batcher.py::test_every_answer_belongs_to_its_request_in_its_order",
          "return joined.take(np.argsort(np.concatenate([place for place, _ in self.parts])))",
          "return joined.take(np.concatenate([place for place, _ in self.parts]))"),
    Fault("serving-3", "serving/datatypes.py", "test_protocol.py::test_bfloat16_is_rounded_as_torch_rounds",
          "rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16",
          "rounded = (bits + 0x7FFF) >> 16"),
    Fault("serving-4", "serving/datatypes.py", "test_protocol.py::test_malformed_requests_are_refused_plainly",
          "if values.size and values.max() > 1:",
          "if values.size and values.max() > 255:"),
    Fault("serving-5", "serving/middleware.py", "test_service.py::test_metrics_are_available_at_the_request_limit",
          "if self.requests >= self.max_requests:",
          "if self.requests > self.max_requests:"),
    Fault("serving-6", "runtime/offline/shard_parts.py",
          "test_older_bundles.py::test_parts_of_0_2_0_are_taken_up_and_merged",
          "total * self.index // self.count)",
          "total * self.index // self.count + 1)"),
    Fault("serving-7", "runtime/offline/shard_parts.py",
          "test_offline.py::test_a_merge_refuses_what_is_not_all_of_one_prediction",
          "if len(parts) < first.shard.count:",
          "if len(parts) > first.shard.count:"),
    Fault("serving-8", "runtime/offline/shard_parts.py",
          "test_offline.py::test_a_merge_refuses_what_is_not_all_of_one_prediction",
          "if not (os.path.isfile(path) and sha256_of(path) == digest)",
          "if not os.path.isfile(path)"),
    Fault("serving-9", "serving/stats.py", "test_monitoring.py::test_a_snapshot_has_sliding_windows_and_is_json",
          "if now - start < seconds:",
          "if now - start > seconds:"),
    Fault("workflow-1", "workflow/data_splits.py",
          "test_make.py::test_thresholds_that_no_data_can_show_are_refused_before_any_work",
          "check_count(len(fitting), 1 - flags.share, SPARED)",
          "check_count(len(fitting), flags.share, SPARED)"),
    Fault("workflow-2", "workflow/data_splits.py",
          "test_make.py::test_data_to_judge_by_that_were_trained_on_are_refused",
          "if share >= MAX_SHARED:",
          "if share > 1:"),
    Fault("workflow-3", "workflow/explore.py",
          "test_explore.py::test_the_best_point_within_budget_and_margin_is_chosen",
          "return auroc if detects else -row.nll, -row.ratio",
          "return auroc if detects else row.nll, -row.ratio"),
    Fault("workflow-4", "workflow/explore.py",
          "test_explore.py::test_the_best_point_within_budget_and_margin_is_chosen",
          "affordable = [(place, row) for place, row in points if row.ratio <= budget]",
          "affordable = [(place, row) for place, row in points if row.ratio >= budget]"),
    Fault("cli-1", "cli/command_options.py", "test_options.py::test_options_that_make_no_sense_together",
          "useful = any((kinds[one], name) in options.taken for one in chosen)",
          "useful = bool(chosen)"),
    Fault("cli-2", "cli/command_options.py", "test_calibrate.py::test_command_line_refusals",
          "lambda number: 0 < number < 1,",
          "lambda number: 0 < number,"),
    Fault("cpp-1", "runtime/cpp/src/calibration.cpp",
          "test_older_bundles.py::test_the_runner_in_cpp_gives_the_rows_of_0_2_0",
          "for (const float each : *values) flags.push_back(below ? each < value : each > value);",
          "for (const float each : *values) flags.push_back(each > value);"),
    Fault("cpp-2", "runtime/cpp/src/calibration.cpp",
          "test_older_bundles.py::test_the_runner_in_cpp_gives_the_rows_of_0_2_0",
          "static_cast<float>(1.0 - static_cast<double>(probabilities[i])) <= conformal.quantile;",
          "static_cast<float>(1.0 + static_cast<double>(probabilities[i])) <= conformal.quantile;"),
    Fault("cpp-3", "runtime/cpp/src/calibration.cpp",
          "test_older_bundles.py::test_the_runner_in_cpp_gives_the_rows_of_0_2_0",
          "const float half = quantile * std::sqrt(prediction.score_variance[i] + floor);",
          "const float half = quantile * (prediction.score_variance[i] + floor);"),
    Fault("cpp-4", "runtime/cpp/src/calibration.cpp",
          "test_older_bundles.py::test_the_runner_in_cpp_gives_the_rows_of_0_2_0",
          "labels.push_back(prediction.probabilities[i] > values[i % values.size()]);",
          "labels.push_back(prediction.probabilities[i] > values[0]);"),
    Fault("cpp-5", "runtime/cpp/src/calibration.cpp", "test_cpp_refusals.py::test_a_bad_bundle_is_refused_in_one_line",
          'calibration.labels = {numbers(labels, "thresholds", 0, 1)};',
          'calibration.labels = {numbers(labels, "thresholds", 0, 2)};'),
    Fault("cpp-6", "runtime/cpp/src/bundle.cpp", "test_cpp_refusals.py::test_a_bad_bundle_is_refused_in_one_line",
          "if (failed || size != bytes) {",
          "if (failed) {"),
    Fault("cpp-7", "runtime/cpp/src/bundle.cpp", "test_cpp_refusals.py::test_a_bad_bundle_is_refused_in_one_line",
          "if (actual == expected) return;",
          "if (actual.size() == expected.size()) return;"),
    Fault("cpp-8", "runtime/cpp/src/fields.cpp", "test_cpp_refusals.py::test_a_bad_bundle_is_refused_in_one_line",
          "if (integer(schema, kSchema, kSchema)) return;",
          "if (integer(schema, kSchema, INT64_MAX)) return;"),
    Fault("cpp-9", "runtime/cpp/src/tensors.cpp", "test_cpp_refusals.py::test_bad_token_ids_are_refused_in_one_line",
          "if (shape[1] > architecture.max_sequence()) {",
          "if (shape[1] > architecture.vocabulary) {"),
    Fault("cpp-10", "runtime/cpp/src/image.cpp", "test_cpp.py::test_pictures_are_turned_as_by_pillow",
          "const bool flip_rows = orientation == 3 || orientation == 4 || orientation == 7",
          "const bool flip_rows = orientation == 3 || orientation == 4 || orientation == 6"),
    Fault("cpp-11", "runtime/cpp/src/resample.cpp", "test_cpp.py::test_rows_are_those_of_hydrant_predict",
          "const double center = (index + 0.5) * scale;",
          "const double center = index * scale;"),
]
# fmt: on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults by name, or all of a room (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults and their files, without running tests")
    parser.add_argument("--whole", action="store_true", help="run all tests instead of the named ones")
    parser.add_argument("--seconds", type=int, default=900, help="time limit of each fault's tests (default: 900)")
    parser.add_argument("--log", type=Path, help="file for the tests' output")
    options = parser.parse_args()
    rooms = {fault.name: fault.name.rpartition("-")[0] for fault in FAULTS}
    if unknown := set(options.only or ()) - set(rooms) - set(rooms.values()):
        parser.error(f"no fault is named {', '.join(sorted(unknown))}")
    faults = [each for each in FAULTS if not options.only or {each.name, rooms[each.name]} & set(options.only)]
    if options.list:
        print(*(f"{each.name:14} {where(ROOT, each)}\n    - {each.old}\n    + {each.new}" for each in faults), sep="\n")
        return 0
    for name in PRELOADED:
        importlib.import_module(name)
    with copied() as tree:
        results = [tried(tree, each, options.whole, options.seconds, options.log) for each in faults]
    print(", ".join(f"{results.count(result)} {result}" for result in sorted(set(results))))
    return 0 if set(results) <= {"caught"} else 1


@contextmanager
def copied() -> Iterator[Path]:
    """Importable copy of the checkout, beside the same shared data."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder) / "hydrant"
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        link(ROOT.parent / "shared", tree.parent / "shared")
        yield tree


def link(source: Path, place: Path) -> None:
    if source.exists() and not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(source.resolve())


def where(tree: Path, fault: Fault) -> Path | str:
    """File of a fault, relative to the tree, or the reason why it is missing."""
    if (tree / fault.path).is_file() and (tree / fault.path).read_text().count(fault.old) == 1:
        return Path(fault.path)
    places = [path.relative_to(tree) for end in CODE for path in tree.rglob(f"*{end}")]
    places = [path for path in places if not path.as_posix().startswith(APART) and not path.parts[0].startswith(".")]
    holding = [path for path in places if fault.old in (tree / path).read_text()]
    if len(holding) == 1 and (tree / holding[0]).read_text().count(fault.old) == 1:
        return holding[0]
    return "absent: no file contains the fragment" if not holding else f"ambiguous: {', '.join(map(str, holding))}"


def tried(tree: Path, fault: Fault, whole: bool, seconds: int, log: Path | None) -> str:
    """Result of a fault: "caught", "missed", or the reason why it could not be tried."""
    place, begun, result = where(tree, fault), time.monotonic(), "not tried"
    tests = ["tests"] if whole else [f"tests/{test}" for test in fault.tests.split()]
    if isinstance(place, Path):
        is_cpp = place.suffix != ".py"
        if not passes(tree, tests, is_cpp, seconds, log):
            place = "its tests are gone, or fail without it"
        else:
            content = (tree / place).read_text()
            write(tree / place, content.replace(fault.old, fault.new))
            status = outcome(tree, tests, is_cpp, seconds, log)
            result = {0: "missed", 1: "caught"}.get(status, f"not tried: pytest ended with {status}")
            write(tree / place, content)
    print(f"{result:10} {fault.name:14} {time.monotonic() - begun:5.0f} s  {place}", flush=True)
    return result.partition(":")[0]


def write(path: Path, content: str) -> None:
    """Write a source file, and remove its compiled files."""
    path.write_text(content)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


KNOWN: dict[tuple[str, ...], bool] = {}


def passes(tree: Path, tests: list[str], is_cpp: bool, seconds: int, log: Path | None) -> bool:
    """Return True if tests pass without a fault; cached."""
    if tuple(tests) not in KNOWN:
        KNOWN[tuple(tests)] = outcome(tree, tests, is_cpp, seconds, log) == 0
    return KNOWN[tuple(tests)]


def outcome(tree: Path, tests: list[str], is_cpp: bool, seconds: int, log: Path | None) -> int:
    """Status of pytest: 0 if all tests pass, 1 if one fails, negative if stopped."""
    if is_cpp and not is_built(tree):
        return 3
    child = os.fork()
    if not child:
        status = 3
        try:
            status = run_tests(tree, tests, is_cpp, log)
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return -signal.SIGKILL
    finally:  # also processes started by the tests
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def is_built(tree: Path) -> bool:
    """Build the C++ runner; only for its faults, so that tests of Python faults skip it."""
    link(ROOT / ".build/onnxruntime", tree / ".build/onnxruntime")
    python = [f"-DONNXRuntime_PYTHON={sys.executable}", f"-DPython3_EXECUTABLE={sys.executable}"]
    steps = [
        ["cmake", "--preset", "release", *python],
        ["cmake", "--build", "--preset", "release", "--target", "hydrant-run"],
    ]
    return all(subprocess.run(step, cwd=tree, capture_output=True, check=False).returncode == 0 for step in steps)


def run_tests(tree: Path, tests: list[str], is_cpp: bool, log: Path | None) -> int:
    """Run pytest on ``tree`` in this process, in its own process group."""
    import pytest

    os.setpgid(0, 0)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if is_cpp:
        os.environ["HYDRANT_RUN"] = str(tree / RUNNER)
    sys.path[:0] = [str(tree.parent)]
    output = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    words = ["-q", "-x", "--confcutdir", "tests", "-p", "no:cacheprovider", "--tb=line"]
    return int(pytest.main([*words, *tests]))


if __name__ == "__main__":
    sys.exit(main())
