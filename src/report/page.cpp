// Fills page.html in: the data for its script, and the same as tables.
#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "config/load.h"
#include "io/json.h"

namespace redline::report {

std::span<const config::EmbeddedFile> page_files();  // page.html and its two scripts, embedded when building

namespace {

// Text made fit for HTML. Control characters, which it does not allow, become spaces.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F ? ' ' : c;
    }
  }
  return out;
}

// Objects are rows with their keys. Of a long list of numbers a few say where it goes.
std::string tables(const io::Json& value) {
  constexpr std::size_t kNumbers = 9;
  if (value.is_string()) return escaped(value.get<std::string>());
  if (value.is_number_float() && std::isfinite(value.get<double>())) return fmt::format("{:.6g}", value.get<double>());
  if (!value.is_structured()) return value.is_number_integer() || value.is_boolean() ? value.dump() : "–";
  std::string out;
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      out += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escaped(key), tables(member));
    return "<table>" + out + "</table>";
  }
  const bool numbers = !value.empty() && value[0].is_number();
  const std::size_t shown = numbers ? std::min(value.size(), kNumbers) : value.size();
  for (std::size_t i = 0; i < shown; ++i)
    out += (i == 0 ? "" : numbers ? ", " : "\n") + tables(value[i == 0 ? 0 : i * (value.size() - 1) / (shown - 1)]);
  return out;
}

}  // namespace

std::string page(std::string_view title, io::Json drawing, const io::Json& data) {
  drawing.update(data);
  std::string json;  // "<" is written so that no text can end the element
  for (const char c : drawing.dump(-1, ' ', false, io::Json::error_handler_t::replace))
    c == '<' ? json += "\\u003c" : json += c;
  const auto files = page_files();
  std::string_view rest = files[0].text;
  std::string out;
  const std::pair<std::string_view, std::string> places[] = {
      {"@title@", escaped(title)},
      {"@title@", escaped(title)},
      {"@tables@", tables(data)},
      {"@data@", std::move(json)},
      {"@script@", std::string(files[1].text).append(files[2].text)}};
  for (const auto& [place, text] : places) {
    const std::size_t at = rest.find(place);
    out.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return out.append(rest);
}

}  // namespace redline::report
