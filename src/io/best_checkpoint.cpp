// The link `best`: made beside, renamed over the old one.
#include "io/best_checkpoint.h"

#include <system_error>

#include "io/checkpoint_folder.h"

namespace redline::io {

std::string link_best(FileSystem& files, const Path& parent, std::int64_t step) {
  const Path link = parent / kBest, beside = parent / "best.new";
  const std::string target = checkpoint_name(step);
  const auto problem = [&](std::string_view why) {
    return fmt::format("{} cannot be made a link to the best checkpoint, which is {}: {}", link.string(), target, why);
  };
  std::error_code error;
  std::filesystem::remove(beside, error);  // what a kill left
  try {
    std::filesystem::create_symlink(target, beside, error);
    if (error) return problem(error.message());
    files.rename(beside, link);
    files.sync_folder(parent);
  } catch (const std::runtime_error& e) {
    std::filesystem::remove(beside, error);
    return problem(e.what());
  }
  return {};
}

std::optional<std::int64_t> best_checkpoint(const Path& parent) {
  std::error_code error;
  const Path target = std::filesystem::read_symlink(parent / kBest, error);
  if (error) return {};
  return checkpoint_step(target.string());
}

Path resolve_best(const Path& folder) {
  const Path parent = parent_of(folder);
  const bool named = (folder.has_filename() ? folder : folder.parent_path()).filename() == kBest;
  const std::optional<std::int64_t> step = named ? best_checkpoint(parent) : std::nullopt;
  return step ? parent / checkpoint_name(*step) : folder;
}

}  // namespace redline::io
