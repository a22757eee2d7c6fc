// Cuts a torn end, or the steps that a run goes back on.
#include "report/appended_rows.h"

#include <charconv>
#include <string>

namespace redline::report {
namespace {

// The step of one line without its newline; -1 when it is not a whole row of ours.
std::int64_t step_of(std::string_view line) {
  if (!line.starts_with(kStepRowStart) || !line.ends_with('}')) return -1;
  line.remove_prefix(kStepRowStart.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  return error == std::errc() && end != line.data() + line.size() && *end == ',' ? step : -1;
}

// How many bytes are whole rows of steps up to `last_step`.
std::size_t whole_rows(std::string_view text, std::int64_t last_step) {
  std::size_t kept = 0;
  for (std::size_t end; (end = text.find('\n', kept)) != text.npos; kept = end + 1) {
    const std::int64_t step = step_of(text.substr(kept, end - kept));
    if (step < 0 || step > last_step) break;
  }
  return kept;
}

}  // namespace

std::unique_ptr<FileWriter> append_rows(FileSystem& files, const Path& path) {
  if (files.exists(path)) {
    const std::string text = files.read(path);
    const std::size_t newline = text.rfind('\n'), kept = newline == text.npos ? 0 : newline + 1;
    if (kept < text.size()) files.truncate(path, kept);
  }
  return files.append(path);
}

void cut_back(FileSystem& files, const Path& path, std::int64_t last_step) {
  if (!files.exists(path)) return;
  const std::string text = files.read(path);
  if (const std::size_t kept = whole_rows(text, last_step); kept < text.size()) files.truncate(path, kept);
}

}  // namespace redline::report
