#!/usr/bin/env python3
"""Makes the tables of the docs from bench/results/*.json, each between `<!-- table: NAME -->` and `<!-- end -->`.

  bench/make_tables.py            writes the tables anew
  bench/make_tables.py --check    fails where they differ from the files, or where a file has no table

A table stands below the head of its file: machine, versions, date, command and the sentences of `about`. TABLES says
which rows and columns it shows; result_files.py says what a file holds.
"""
import argparse
import os
import re
import string
import sys

import long_run
import result_files

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_lines  # noqa: E402

DOCUMENTS = [os.path.join(ROOT, "docs", name) for name in ("results.md", "experiments.md")]
MODEL = "{model} {batch_size}x{seq_len}"


class BadTable(Exception):
    """One sentence: what is wrong with a file, a table or the document."""


def filled(form, row):
    """The form with the row's values in it; nothing where one of them is not known."""
    for _, field, _, _ in string.Formatter().parse(form):
        if field is None:
            continue
        try:
            if string.Formatter().get_field(field, (), row)[0] is None:
                return ""
        except (KeyError, TypeError):
            return ""
    return form.format(**row)


def span(key, unit, form="{:g}"):
    """[87, 91] is "87 to 91%", 90 is "90%"."""
    def cell(row):
        value = row[key]
        if value is None:
            return ""
        return " to ".join(form.format(v) for v in (value if isinstance(value, list) else [value])) + unit
    return cell


def ratio(of, to):
    return lambda row: f"{row[of] / row[to]:.2f}x"


def difference(expected, measured, digits=1):
    percent = round(100 * (expected / measured - 1), digits)
    return f"{percent:+.{digits}f}%" if percent else f"{0:.{digits}f}%"


def columns(*described):
    """A table with one line a row: (head, form or function of the row) a column."""
    def table(rows):
        lines = [[filled(how, row) if isinstance(how, str) else how(row) for _, how in described] for row in rows]
        return [head for head, _ in described], lines
    return table


def full_rows(table):
    return lambda rows: table([row for row in rows if row["rows"] == "full"])


def by_model(rows):
    found = {}
    for row in rows:
        found.setdefault(row["model"], []).append(row)
    return found


def settings(rows):
    """A line a setting, a column a model: what it costs beside the first."""
    models = by_model(rows)
    head = ["setting"] + [MODEL.format(**of[0]) for of in models.values()]
    lines = []
    for i, row in enumerate(next(iter(models.values()))):
        line = [f"`{row['setting']}`" if row["setting"] else "defaults"]
        for of in models.values():
            cost = difference(of[i]["step_ms"], of[0]["step_ms"], 0)
            line.append(filled("{step_ms:.1f} ms", of[i]) + ("" if cost == "0%" else f" ({cost})") +
                        filled(", {memory_gib:.1f} GiB", of[i]))
        lines.append(line)
    return head, lines


def auto_batch(rows):
    lines = []
    for model, of in by_model(rows).items():
        cells = [filled("{batch_size} x {accumulate}, {ktokens_per_s:g}k", row) for row in of]
        lines.append([model, cells[0] + " tok/s", *cells[1:]])
    return ["model", "", "", ""], lines


def saves(rows):
    """A line a model and place of the copy: its saves one after another."""
    def listed(form):
        return lambda of: ", ".join(form(row) if callable(form) else form.format(**row) for row in of)

    groups = {}
    for row in rows:
        groups.setdefault((row["model"], row["batch_size"], row["copy"]), []).append(row)
    described = (
        ("model, rows", lambda of: "{model} {batch_size}".format(**of[0])),
        ("copy in the memory of the", lambda of: of[0]["copy"]),
        ("ms a step", lambda of: "{step_ms:.1f}".format(**of[0])),
        ("saves behind step", listed("{step}")),
        ("held, ms", listed("{held_ms:.1f}")),
        ("the next step, ms", listed("{next_step_ms[0]:.1f}")),
        ("all in all, of a step", listed(lambda row: f"{100 * row['slower_steps']:+.1f}%")),
        ("written in, s", listed("{seconds:.1f}")),
        ("GB/s", listed("{gbytes_per_s:.2f}")),
        ("plain write with a sync, GB/s", lambda of: "{plain_gbytes_per_s:.2f}".format(**of[0])))
    return [head for head, _ in described], [[cell(of) for _, cell in described] for of in groups.values()]


def packed(rows):
    rows = [row for row in rows if row["rows"] != "full"]
    fastest = max(row["ktokens_per_s"] for row in rows)
    return columns(
        ("rows", packed_rows), ("real tokens/s", "{ktokens_per_s:.1f}k"),
        ("the fastest is", lambda row: "" if row["ktokens_per_s"] == fastest else
         f"{fastest / row['ktokens_per_s']:.1f}x as fast"),
        ("ms a step", "{step_ms:.1f}"), ("padding", "{padding_percent:.1f}%"))(rows)


def packed_rows(row):
    if row["program"] == "peer":
        return "PyTorch, one document a row, nothing masked"
    return {"pack": "packed (`data.packing=pack`)", "pad": "one document a row (`data.packing=pad`)"}[row["rows"]]


def or_other_card(form, before=""):
    def cell(row):
        other = row["other_card"]
        return filled(form, row) + (f", {before}" + filled(form, other) if other else "")
    return cell


def plan_name(row):
    recompute = row["recompute"]
    return filled(MODEL, row) + ("" if recompute == "none" else f", {recompute}")


MFU = "{mfu_percent:.1f} / {mfu_palm_percent:.1f}"


def both_ways(head, who):
    """The column of one way to compute attention: forward / backward."""
    key = f"{who}_tflops_per_s"
    return head, f"{{{key}[0]}} / {{{key}[1]}}"


# Table: the file without .json, what is made of its rows.
TABLES = {
    "cpu-quick": ("cpu_quick", columns(
        ("program", "{program}"), ("step", "{step_ms:.0f} ms"), ("tokens/s", "{ktokens_per_s:.2f}k"),
        ("first step after", "{first_step_s:g} s"), ("command", "`{command}`"))),
    "cpu-quick-ops": ("cpu_quick_ops", columns(
        ("op", "{op}"), ("ms", "{ms:.0f}"), ("share", "{share_percent:.1f}%"), ("GFLOP/s", "{gflops_per_s:.0f}"))),
    "tokenizer": ("tokenizer", columns(
        ("", lambda row: filled("{program}, {threads} thread", row) + ("s" if row["threads"] > 1 else "")),
        ("MB/s", "{mb_per_s:.1f}"), ("MB a cpu-second", "{mb_per_cpu_s:.1f}"))),
    "loader": ("loader", columns(
        ("from", "{from}"), ("packing", "{packing}"), ("no workers", "{mtokens_per_s_by_workers[0]} M"),
        ("1 worker", "{mtokens_per_s_by_workers[1]} M"), ("2 workers", "{mtokens_per_s_by_workers[2]} M"))),
    "load-weights": ("load_weights", columns(
        ("folder", "{folder}"), ("read, cold", "{read_cold_ms}"), ("load, cold", "{load_cold_ms}"),
        ("bests", span("cold_ratio_of_bests", "x", "{:.1f}")),
        ("medians", span("cold_ratio_of_medians", "x", "{:.1f}")),
        ("read, warm", "{read_warm_ms}"), ("load, warm", "{load_warm_ms}"),
        ("bests", span("warm_ratio_of_bests", "x", "{:.1f}")),
        ("first touch alone", "{first_touch_ms}"))),
    "h200-load-weights": ("h200_load_weights", columns(
        ("folder, to", "{folder}, {to}"), ("read, cold", "{read_cold_ms} ms"), ("load, cold", "{load_cold_ms} ms"),
        ("", ratio("load_cold_ms", "read_cold_ms")), ("read, warm", "{read_warm_ms} ms"),
        ("load, warm", "{load_warm_ms} ms"), ("", ratio("load_warm_ms", "read_warm_ms")))),
    "h200-saves": ("h200_saves", saves),
    "h200-spine": ("h200_spine", columns(
        ("model, batch", MODEL), ("documents", "{documents}"), ("before", "{before_ms:.1f} ms"),
        ("now", "{step_ms:.1f} ms"), ("before", "{before_gib:.2f} GiB"), ("now", "{nvidia_smi_gib:.2f} GiB"))),
    "h200-models": ("h200_models", full_rows(columns(
        ("model, batch", MODEL), ("ms a step", "{step_ms:.1f}"), ("k tok/s", "{ktokens_per_s:.1f}"),
        ("mfu / palm", MFU), ("memory", "{memory_gib:.1f} GiB"), ("first step", "{first_step_s:.1f} s"),
        ("PyTorch k tok/s", "{peer[ktokens_per_s]:.1f}"),
        ("mfu / palm", "{peer[mfu_percent]:.1f} / {peer[mfu_palm_percent]:.1f}"),
        ("memory", "{peer[memory_gib]:.1f} GiB"), ("first step", "{peer[first_step_s]:.1f} s")))),
    "h200-models-136b": ("h200_models_136b", full_rows(columns(
        ("model, batch", MODEL), ("precision", "{precision}"), ("ms a step", "{step_ms:.1f}"),
        ("plan", "{plan[step_ms]:.1f}"), ("k tok/s", "{ktokens_per_s:.1f}"), ("mfu", "{mfu_percent:.1f}"),
        ("PyTorch k tok/s", "{peer[ktokens_per_s]:.1f}"), ("mfu", "{peer[mfu_percent]:.1f}")))),
    "h200-plan-one-call": ("h200_models", full_rows(columns(
        ("model, batch", MODEL), ("memory, plan's total", "{plan[total_gib]:.2f} GiB"),
        ("`nvidia-smi`", "{nvidia_smi_gib:.2f}"), ("step, plan", "{plan[step_ms]:.1f} ms"),
        ("measured", "{step_ms:.1f}"), ("", lambda row: difference(row["plan"]["step_ms"], row["step_ms"]))))),
    "h200-packed": ("h200_packed", packed),
    "h200-settings": ("h200_settings", settings),
    "h200-precisions": ("h200_precisions", columns(
        ("`precision.matmul`", "{precision}"), ("ms a step", or_other_card("{step_ms:.1f}", "on another card ")),
        ("k tok/s", or_other_card("{ktokens_per_s:g}")),
        ("with `kernels.attention=reference`", "{reference_attention_ms:.1f} ms"))),
    "h200-step-ops": ("h200_step_ops", columns(
        ("op", "{op}"), ("ms", "{ms:.1f}"), ("share", "{share_percent:.1f}%"), ("TFLOP/s", "{tflops_per_s:.0f}"),
        ("of the copy rate", span("of_copy_percent", "%")))),
    "h200-kernels": ("h200_kernels", columns(
        ("kernel", "{kernel}"), ("of the copy rate", lambda row: span("of_copy_percent", "%")(row) + row["note"]))),
    "h200-attention": ("h200_attention", columns(
        ("rows, heads, tokens, head_dim", "{case}"), both_ways("cuDNN", "cudnn"), both_ways("own, Hopper", "hopper"),
        both_ways("own flash", "flash"))),
    "h200-attention-precisions": ("h200_attention_precisions", columns(
        ("rows, heads, tokens, head_dim", "{case}"), both_ways("tf32", "tf32"), both_ways("fp32", "fp32"))),
    "h200-loss": ("h200_loss", columns(
        ("`train.seed`", "{seed}"), ("CPU, fp32", "{cpu_fp32:.3f}"), ("H200, fp32", "{card_fp32:.3f}"),
        ("H200, tf32", "{card_tf32:.3f}"), ("H200, bf16", "{card_bf16:.3f}"))),
    "h200-text": ("h200_text", columns(
        ("program", "{program}"), ("data", "{data}"), ("seed", "{seed}"), ("held-out loss", "{held_out:.3f}"),
        ("a step", "{step_ms:.1f} ms"))),
    "h200-plan": ("h200_plan", columns(
        ("model, batch, recompute", plan_name), ("memory, plan", "{plan[arena_gib]:.1f} GiB"),
        ("measured", lambda row: filled("{memory_gib:.1f}", row) + (" (*)" if row["logits_8192_rows"] else "")),
        ("", lambda row: difference(row["plan"]["arena_gib"], row["memory_gib"])),
        ("step, plan", "{plan[step_ms]:.1f} ms"), ("measured", "{step_ms:.1f}"),
        ("", lambda row: difference(row["plan"]["step_ms"], row["step_ms"])),
        ("mfu, plan", "{plan[mfu_percent]:.1f}"), ("measured", span("mfu_percent", "")))),
    "h200-auto-batch": ("h200_auto_batch", auto_batch),
    "h200-other-cards": ("h200_other_cards", columns(
        ("model, batch", MODEL), ("mfu on the other cards", span("mfu_percent", "%")),
        ("ms a step on the slowest", "{slowest_step_ms:.1f}"), ("plan", "{plan_step_ms:.1f}"))),
    "h200-vocabulary": ("h200_vocabulary", columns(
        ("precision, rows", "{precision}, {batch_size}"), ("50,257 before", "{before_ms:.1f}"),
        ("50,257", "{step_ms:.1f}"), ("50,304", "{even_ms:.1f}"), ("PyTorch, 50,257", "{peer_ms:.1f}"))),
    "h200-long-run": ("h200_long_run", lambda rows: columns(
        ("run", "{arm}"), ("minutes of steps", lambda row: f"{row['seconds'] / 60:.2f}"), ("steps", "{step:,}"),
        ("million tokens", "{mtokens:.1f}"), ("held out", "{held_out:.4f}"),
        ("bits a byte", "{bits_per_byte:.4f}"))(long_run.shown(rows))),
    "h200-long-run-seconds": ("h200_long_run", long_run.equal_lines),
    "h200-long-run-90-minutes": ("h200_long_run", long_run.forecast_lines),
    "h200-long-run-text": ("h200_long_run_text", columns(
        ("corpus", "{corpus}"), ("from", "{source}"), ("licence", "{licence}"), ("documents", "{documents:,}"),
        ("MB", "{mbytes:.1f}"), ("million tokens", "{mtokens:.1f}"), ("held out", "{held_out_documents:,}"))),
    "h200-second-stream": ("h200_second_stream", columns(
        ("work", "{work}"), ("alone", "{ms:g} ms"), ("of a step", "{of_step_percent:g}%"))),
    "libonig": ("libonig", columns(
        ("pattern", "{pattern}"), ("PCRE2", "{pcre2_mb_per_cpu_s:.1f}"), ("libonig", "{libonig_mb_per_cpu_s:.1f}"))),
    "simdjson": ("simdjson", columns(
        ("work", "{work}"), ("own", "{own} {unit}"), ("simdjson, DOM", "{simdjson} {unit}"))),
}

MARKED = re.compile(r"(<!-- table: (?P<name>\S+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)


# Names of versions and ceilings in a file's head, as its readers write them.
VERSIONS = {"cuda": "CUDA", "cublaslt": "cuBLASLt", "cudnn": "cuDNN", "openblas": "OpenBLAS", "pytorch": "PyTorch"}
CEILINGS = {"product_tflops_per_s": "{:g} TFLOP/s in a large product", "copy_gbytes_per_s": "{:g} GB/s in a large copy"}


def words_above(result):
    """The paragraph above a table, from the head of its file; what is null there is left out."""
    of = [result["machine"] or "a machine that was not noted"]
    of += [f"{VERSIONS.get(name, name)} {version}" for name, version in result["versions"].items() if version]
    of += [CEILINGS[name].format(rate) for name, rate in result.get("ceilings", {}).items()]
    by_row = any("command" in row for row in result["rows"])
    command = "" if by_row or not result["command"] else f": `{result['command']}`"
    text = f"{'; '.join([', '.join(of), result['date']])}{command}. {result.get('about', '')}"
    return check_lines.wrapped(text, "", "")


def table_of(name, folder):
    if name not in TABLES:
        raise BadTable(f"table {name}: bench/make_tables.py does not know it")
    file, make = TABLES[name]
    path = os.path.join(folder, file + ".json")
    try:
        result = result_files.read(path)
        above = words_above(result) + [""] if file == name.replace("-", "_") else []
        head, lines = make(result["rows"])
    except OSError as error:
        raise BadTable(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadTable(f"{path}: not what table {name} shows: {error}") from error
    for title, cells in zip(head, zip(*lines)):
        if not any(cells):  # a key by another name would be an empty column
            raise BadTable(f"{path}: table {name} finds nothing for its column '{title}'")
    rule = "|" + "---|" * len(head)
    return "\n".join([*above, line_of(head), rule, *map(line_of, lines)]) + "\n"


def line_of(cells):
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def require_all_shown(texts, folder):
    """Every file of the folder has a table in some document."""
    shown = {TABLES[match["name"]][0] for text in texts for match in MARKED.finditer(text) if match["name"] in TABLES}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".json") and file[:-5] not in shown:
            raise BadTable(f"{os.path.join(folder, file)}: no table of the documents shows it")


def made(text, folder):
    """The document with its tables as the files have them."""
    if text.count("<!-- table: ") != len(MARKED.findall(text)):
        raise BadTable("a mark '<!-- table: NAME -->' has no '<!-- end -->' behind it")
    return MARKED.sub(lambda match: match[1] + table_of(match["name"], folder) + match[4], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table differs")
    parser.add_argument("--documents", nargs="+", default=DOCUMENTS,
                        help="default: docs/results.md and docs/experiments.md")
    parser.add_argument("--results", default=result_files.FOLDER, help="folder of the files (default: bench/results)")
    given = parser.parse_args()
    try:
        texts = {}
        for document in given.documents:
            with open(document, encoding="utf-8") as file:
                texts[document] = file.read()
        made_texts = {document: made(text, given.results) for document, text in texts.items()}
        require_all_shown(texts.values(), given.results)
    except OSError as error:
        sys.exit(f"make_tables: {error.filename}: {error.strerror}")
    except BadTable as error:
        sys.exit(f"make_tables: {error}")
    for document, new in made_texts.items():
        if new == texts[document]:
            continue
        if given.check:
            old, now = ({m["name"]: m["table"] for m in MARKED.finditer(t)} for t in (texts[document], new))
            names = ", ".join(name for name in now if now[name] != old[name])
            sys.exit(f"make_tables: {document} differs from {given.results} in {names}; run bench/make_tables.py")
        with open(document, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
