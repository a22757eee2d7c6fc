// Pieces of a file become lines; what is left at its end is half of one.
#include "report/json_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/words.h"
#include "io/json.h"

namespace redline::report {
namespace {

constexpr std::size_t kLongestLine = 1 << 24;

io::Json object_of(std::string_view line) { return io::Json::parse(line, nullptr, false); }

}  // namespace

double number_or(const io::Json& object, std::string_view key, double otherwise) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return otherwise;
  const auto value = it->get<double>();
  return plausible(value) ? value : otherwise;
}

std::int64_t integer_or(const io::Json& object, std::string_view key, std::int64_t otherwise) {
  const double value = number_or(object, key, static_cast<double>(otherwise));
  return std::fabs(value) < 0x1p53 ? static_cast<std::int64_t>(value) : otherwise;
}

std::string text_or(const io::Json& object, std::string_view key, std::string otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::move(otherwise);
}

const io::Json* list_in(const io::Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? &*it : nullptr;
}

std::size_t for_each_line(std::string_view text, const std::function<void(std::string_view)>& take) {
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    take(text.substr(begin, end - begin));
  return begin;
}

void JsonRows::read(const std::function<bool(std::string_view)>& take) {
  if (!files_.exists(path_)) return;
  const double size = static_cast<double>(std::max<std::uint64_t>(files_.size(path_), 1));
  std::int64_t number = 0, odd = 0, first_odd = 0;
  const auto line = [&](std::string_view text) {
    ++number;
    if (!take(text) && odd++ == 0) first_odd = number;
  };
  std::string rest;
  double seen = 0;
  bool passing = false;  // a line that is longer than any that we write
  files_.read_pieces(path_, [&](std::span<const std::byte> piece) {
    rest.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    if (passing) {
      const std::size_t newline = rest.find('\n');
      passing = newline == rest.npos;
      rest.erase(0, passing ? rest.size() : newline + 1);
    }
    rest.erase(0, for_each_line(rest, line));
    if (rest.size() > kLongestLine) {
      line({});
      passing = true;
      rest.clear();
    }
    seen += static_cast<double>(piece.size());
    if (progress_) progress_(seen / size);
  });
  const std::string file = path_.filename().string();
  if (odd > 0)
    problems_.push_back(fmt::format("{}: {} that {} not what this version writes, the first at line {}; passed over",
                                    file, counted(odd, "line"), odd == 1 ? "is" : "are", first_odd));
  if (!rest.empty())
    problems_.push_back(fmt::format(
        "{} ends in half a line, as a run that was killed or is still writing leaves it; what stands before it is "
        "shown",
        file));
}

void JsonRows::read_objects(const std::function<bool(const io::Json&)>& take) {
  read([&](std::string_view text) {
    const io::Json row = object_of(text);
    return row.is_object() && take(row);
  });
}

void JsonRows::read_lists(std::string_view key,
                          const std::function<void(std::int64_t step, const io::Json& list)>& take) {
  read_objects([&](const io::Json& row) {
    const io::Json* list = list_in(row, key);
    const std::int64_t step = integer_or(row, "step", -1);
    if (step < 0 || !list) return false;
    take(step, *list);
    return true;
  });
}

std::string NewRows::new_lines() {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path_, error);
  if (error) return {};
  if (size < offset_) offset_ = 0;
  std::string text(size - offset_, '\0');
  if (text.empty()) return {};
  try {
    InputFile(path_).read(offset_, std::as_writable_bytes(std::span(text.data(), text.size())));
  } catch (const UserError&) {  // it was cut back between the two calls, or may not be read
    return {};
  } catch (const MachineError&) {
    return {};
  }
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0: the last line may be on its way
  return text;
}

void NewRows::read(const std::function<void(const io::Json&)>& take) {
  std::string text = new_lines();
  // Cut back and grown beyond its old end since: then what is new begins within a line.
  if (offset_ > 0 && !text.empty() && !object_of(std::string_view(text).substr(0, text.find('\n'))).is_object()) {
    offset_ = 0;
    text = new_lines();
  }
  offset_ += for_each_line(text, [&](std::string_view line) {
    if (const io::Json row = object_of(line); row.is_object()) take(row);
  });
}

}  // namespace redline::report
