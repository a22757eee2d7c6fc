// The words and what they become.
#include "cli/document_words.h"

#include "base/error.h"

namespace redline::cli {

void DocumentWords::declare(Arguments& arguments) {
  arguments.words("INPUT...", inputs,
                  "text or .jsonl files, also .gz and .zst; .parquet files; folders; patterns such as 'wiki/*.txt'");
  arguments.text(
      "--text-field", "F", text_field,
      ".jsonl: the field that holds the text, .parquet: the column; meta.text is a field of a field (default: text)");
  arguments.text(
      "--separator", "S", separator,
      "text files: what stands between documents; \\n and \\t are understood (default: a file is a document)");
  arguments.choice("--on-error", "WHAT", on_error, {"stop", "skip"},
                   "what to do at malformed documents and broken archives: stop or skip (default: stop)");
}

data::InputFormat DocumentWords::format() const {
  if (text_field.empty()) fail_user("--text-field takes the name of a field, not nothing");
  data::InputFormat format;
  format.text_field = text_field;
  format.separator = data::separator_of(separator, "--separator");
  format.text_field_key = "--text-field";
  format.separator_key = "--separator";
  return format;
}

}  // namespace redline::cli
