// Numbers with their units, as people read them. Each kind of figure is written the same way everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace redline::report {

std::string bytes(double n);           // "17 B", "312 MiB", "1.50 GiB"
std::string duration(double seconds);  // "340 ms", "3.4 s", "42 s", "1m 20s", "3h 05m", "2d 04h"
// ", eta 12 s", where so much of the work took so many seconds; nothing before any of it is done.
std::string eta(double seconds, double done, double of);
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
std::string plain(double value,
                  int decimals);  // fixed for small numbers, else "1.2e+09"; at most 12 characters

}  // namespace redline::report
