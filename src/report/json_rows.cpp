// Pieces of a file become lines; what is left at its end is half of one.
#include "report/json_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/words.h"
#include "io/json.h"

namespace redline::report {
namespace {

constexpr std::size_t kLongestLine = 1 << 24;

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

void JsonRows::read(const std::function<bool(std::string_view)>& take) {
  if (!files_.exists(path_)) return;
  const double size = static_cast<double>(std::max<std::uint64_t>(files_.size(path_), 1));
  std::string rest;
  double seen = 0;
  bool passing = false;  // a line that is longer than any that we write
  files_.read_pieces(path_, [&](std::span<const std::byte> piece) {
    rest.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    std::size_t begin = 0;
    if (passing) {
      begin = std::min(rest.find('\n'), rest.size() - 1) + 1;
      passing = rest[begin - 1] != '\n';
    }
    for (std::size_t end; (end = rest.find('\n', begin)) != rest.npos; begin = end + 1)
      line(std::string_view(rest).substr(begin, end - begin), take);
    rest.erase(0, begin);
    if (rest.size() > kLongestLine) {
      line({}, take);
      passing = true;
      rest.clear();
    }
    seen += static_cast<double>(piece.size());
    if (progress_) progress_(seen / size);
  });
  const std::string file = path_.filename().string();
  if (odd_ > 0)
    problems_.push_back(fmt::format("{}: {} that {} not what this version writes, the first at line {}; passed over",
                                    file, counted(odd_, "line"), odd_ == 1 ? "is" : "are", first_odd_));
  if (!rest.empty())
    problems_.push_back(fmt::format(
        "{} ends in half a line, as a run that was killed or is still writing leaves it; what stands before it is "
        "shown",
        file));
}

void JsonRows::read_objects(const std::function<bool(const io::Json&)>& take) {
  read([&](std::string_view text) {
    const io::Json row = io::Json::parse(text, nullptr, false);
    return row.is_object() && take(row);
  });
}

void JsonRows::line(std::string_view text, const std::function<bool(std::string_view)>& take) {
  ++number_;
  if (!take(text) && odd_++ == 0) first_odd_ = number_;
}

}  // namespace redline::report
