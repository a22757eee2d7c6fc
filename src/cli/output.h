// Standard output and standard error as commands use them: results to the one, one sentence of error to the other, and
// no crash when a reader has gone away.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace redline::cli {

// A closed pipe becomes a failed write instead of a signal that would end a run; a closed standard stream becomes
// /dev/null, so that no file of ours gets its number.
void prepare_output();

void print(std::string_view text);                    // to standard output
void print_json(const nlohmann::ordered_json& json);  // the one document of --json; what is not finite becomes null
void print_error(std::string_view sentence);          // "redline: error: sentence", in one line

bool has_blocks();  // whether the terminal's characters are UTF-8, as its environment says

void flush_output();   // what was printed is shown now; a failure is told at the end
bool output_failed();  // so that nothing more need be printed: a full disk, or a pipe that nobody reads

// Flushes. Empty when all of it was written or nobody is there to read it; else a sentence.
std::string finish_output();

// A file that a command is about to write: its folder must be there, and it must be neither what the command reads nor
// a device. `flag` leads the UserErrors.
void check_output_file(std::string_view flag, const std::string& file, const std::vector<std::string>& inputs);

}  // namespace redline::cli
