// Names of files that say what they are for: train, val (valid, validation, eval) and test, as nanoGPT, llm.c and the
// layouts of Hugging Face have them. A folder or pattern that holds such names is trained on in part; a file that
// somebody names is what he says it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace redline::data {

enum class FileRole { none, train, held_out, test };

// By the path below the folder that was named: the file's own name ("train.bin", "val_000.bin",
// "validation-00000-of-00002.parquet", "fineweb_train_000001.bin"), else the nearest folder of such a name. Only names
// of data have roles: a source file train.py has none.
FileRole role_of(std::string_view path_below);

// The files of a folder or pattern by their roles. A prepared folder inside of it stands for its files.
struct RoleSplit {
  std::vector<std::string> train, held_out, test;
  std::vector<std::string> others;  // without a role, and not trained on

  // For data.eval: to validate with, or to test with where there is nothing else.
  const std::vector<std::string>& evaluated() const { return held_out.empty() ? test : held_out; }
};

// Nothing where names have no roles, so that every file is read, and for a file, a prepared folder, generated data.
// Files without a role are trained on where no file is called train, and where those that are so called are the smaller
// part; beside token files called train, only token files. A path that is missing is a UserError that starts with
// `key`.
std::optional<RoleSplit> split_by_role(const std::string& entry, const std::string& key);
// The same of some of its files.
std::optional<RoleSplit> split_by_role(const std::string& entry, const std::vector<Path>& files);

// "data.train: DIR: train.bin is trained on, val.bin is held out, by their names; ..."
enum class RoleUse { train_and_hold_out, train, evaluate };
std::string in_words(const RoleSplit& split, const std::string& entry, std::string_view key, RoleUse use);

}  // namespace redline::data
