// TensorBoard's event files, byte by byte: records with masked CRC32C, and the few protocol-buffer messages that
// scalars, text and histograms need. docs/formats.md writes them down.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redline::report::tensorboard {

std::uint32_t crc32c(std::string_view bytes);

// One message as a file holds it: its length and the message, each followed by its check sum.
std::string record(std::string_view message);

// Messages, ready for record(). Every one is an Event with its time (seconds since 1970) and step.
std::string version_event(double time);                     // the first of every file
std::string restart_event(double time, std::int64_t step);  // voids all that was written for this step and later

using Scalar = std::pair<std::string_view, double>;  // tag and value
std::string scalars_event(double time, std::int64_t step, std::span<const Scalar> scalars);

std::string text_event(double time, std::int64_t step, std::string_view tag, std::string_view markdown);

// Needs at least one value. Buckets grow by a tenth, as TensorBoard's own.
std::string histogram_event(double time, std::int64_t step, std::string_view tag, std::span<const double> values);

}  // namespace redline::report::tensorboard
