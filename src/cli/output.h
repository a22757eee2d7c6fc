// Standard output and standard error as commands use them: results to the one, one sentence of error to the other, and
// no crash when a reader has gone away.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace redline::cli {

// A closed pipe becomes a failed write instead of a signal that would end a run; a closed standard stream becomes
// /dev/null, so that no file of ours gets its number.
void prepare_output();

// Text for a person, to standard output: whatever in it came from outside steers no terminal, also behind a pipe that
// ends at one.
void print(std::string_view text);
// Bytes that are the result themselves (a model's text, ids, a configuration): as they are, but on a terminal as above.
void print_data(std::string_view bytes);
// Prints the one document of --json; a number that is not finite becomes null.
void print_json(const io::Json& json);
void print_error(std::string_view sentence);  // "redline: error: sentence", in one line

bool has_blocks();  // whether the environment says that the terminal's characters are UTF-8

// A word as a shell reads it: "'my texts'"; shell_word() leaves it as it is where it needs no quotes.
std::string in_shell_quotes(std::string_view text);
std::string shell_word(std::string_view text);

void flush_output();   // shows the printed text now; a failure is reported at the end
bool output_failed();  // a full disk, or a pipe without a reader: printing more is pointless

// Flushes. Returns a sentence where text was lost, and nothing where all was written or the reader has gone.
std::string finish_output();

// What commands write into files that a user names, and how it begins.
struct OutputKind {
  std::string_view what, begins;
};
inline constexpr OutputKind kPageFile{"page", "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<!-- The page of report,"},
    kTraceFile{"trace", R"({"displayTimeUnit":"ms","traceEvents":[)"},
    kTableFile{"table of ladder or tune", "{\n  \"title\": "}, kOverlayFile{"overlay of tune", "# Found by `"},
    kTokenizerFile{"tokenizer", "{\n \"version\": \"1.0\","};

// Checks a file that a command is about to write. Its folder must exist, and it must be no device. A file that is there
// gives its place to another of the same kind alone, so that no output replaces a configuration, a model or data,
// however these were named; and it must be none of `inputs`. `flag` begins the UserErrors.
void check_output_file(std::string_view flag, const std::string& file, const OutputKind& kind,
                       const std::vector<std::string>& inputs = {});

}  // namespace redline::cli
