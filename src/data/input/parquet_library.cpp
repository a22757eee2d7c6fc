// The two places where the module may lie, and the sentence where it does not.
#include "data/input/parquet_library.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr const char* kModule = "redline-parquet.so";

ParquetLibrary load() {
  ParquetLibrary library;
  std::error_code error;
  const Path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) fail_machine("/proc/self/exe: {}", error.message());
  const std::array<Path, 2> places = {folder / kModule, (folder / ".." / "lib/redline" / kModule).lexically_normal()};
  for (const Path& place : places) {
    if (!std::filesystem::exists(place, error)) continue;
    void* const handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* const reason = ::dlerror();
      library.problem = fmt::format("{} could not be loaded ({})", kModule, reason ? reason : "no reason was given");
      return library;
    }
    const auto entry = reinterpret_cast<RedlineParquetEntry>(::dlsym(handle, "redline_parquet"));
    const RedlineParquet* const functions = entry ? entry() : nullptr;
    if (functions && functions->interface == kParquetInterface) {
      library.functions = functions;
    } else {
      library.problem = fmt::format("{} is of another version of redline", place.string());
    }
    return library;
  }
  library.problem = fmt::format("{} is neither in {} nor in {}", kModule, places[0].parent_path().string(),
                                places[1].parent_path().string());
  return library;
}

// A name as a shell takes it.
std::string in_shell(const Path& path) {
  std::string name = path.string();
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (!name.empty() && name.find_first_not_of(kPlain) == name.npos) return name;
  std::string out = "'";
  for (const char c : name) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

}  // namespace

bool is_parquet(const Path& path) { return path.extension() == ".parquet"; }

const ParquetLibrary& parquet_library() {
  static const ParquetLibrary library = load();
  return library;
}

const RedlineParquet& require_parquet_library(const Path& file, const std::string& column) {
  const ParquetLibrary& library = parquet_library();
  if (library.functions) return *library.functions;
  const Path lines = Path(file).replace_extension(".jsonl").filename();
  fail_user(
      "{}: Parquet is read by a module, and {}; build redline where Arrow's C++ library or the Python package "
      "pyarrow is found, or write the file as .jsonl: python3 -c 'import json, sys, pyarrow.parquet as p; "
      "[print(json.dumps(r)) for b in p.ParquetFile(sys.argv[1]).iter_batches(columns=[sys.argv[2]]) for r in "
      "b.to_pylist()]' {} {} > {}",
      file.string(), library.problem, in_shell(file), in_shell(column), in_shell(lines));
}

}  // namespace redline::data
