// Numbers with their units, bars and paragraphs, as people read them. Each kind of figure is written the same way
// everywhere.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace redline::report {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // a figure that is not known
// A quantile (0 to 1) of the values that are not NaN. NaN where there are none.
double quantile(std::vector<double> values, double q);

std::string bytes(double n);           // "17 B", "312 MiB", "1.50 GiB"
std::string duration(double seconds);  // "340 ms", "3.4 s", "42 s", "1m 20s", "3h 05m", "2d 04h"
// ", eta 12 s", where so much of the work took so many seconds; nothing before any of it is done.
std::string eta(double seconds, double done, double of);
// ", 5.2 s left", where this share of the work took so many seconds; nothing in its first moments, which say little.
std::string time_left(double seconds, double share);
std::string count(double n);                                 // "950", "12.3 k", "4.93 M"
std::string count(double n, std::string_view noun);          // "1 token", "12.3 k tokens"
std::string token_rate(double per_second);                   // "3.10k tok/s"
std::string flop_rate(double per_second);                    // "51.2 GFLOP/s"
std::string flops(double n);                                 // "3.21 PFLOP"
std::string percent(double share);                           // "48.2%"
std::string energy(double joules);                           // "4.17 Wh", "0.42 kWh", "1.31 MWh"
std::string joules(double n);                                // "1.30 J", "420 mJ", "12.3 µJ"
std::string grouped(std::int64_t n);                         // "4,012,345"
std::string grouped(std::int64_t n, std::string_view noun);  // "1 token", "4,012,345 tokens"
// Fixed for small numbers, else "1.2e+09"; at most 12 characters.
std::string plain(double value, int decimals);

// A bar with a precision of an eighth of a column where the terminal has block characters, else of '#'.
std::string bar(double columns, bool blocks);
// The same in two parts, in whole columns: the needed share, and the rest.
std::string bar_of_two(double needed, double rest, bool blocks);
// Words over several lines of up to 100 columns, indented under what leads them.
std::string paragraph(std::string_view lead, std::string_view words);

}  // namespace redline::report
