// One row a format; then statistics of what no row knows.
#include "data/input/file_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/input/byte_stream.h"
#include "data/utf8.h"

namespace redline::data {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::size_t at;
  std::string_view magic, name;
  std::string_view instead;  // empty: it holds no text that could be taken out
};

constexpr std::string_view kLines = ".to_json(OUT, orient=\"records\", lines=True) writes it as .jsonl";

constexpr Format kFormats[] = {
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", "pandas.read_hdf(FILE)"},
    {0, "\x1f\x8b"sv, "gzip", "give it a name that ends in .gz"},
    {0, "\x28\xb5\x2f\xfd"sv, "zstd", "give it a name that ends in .zst"},
    {0, "\xfd\x37zXZ\0"sv, "xz", "unpack it with unxz"},
    {0, "\x04\x22\x4d\x18"sv, "lz4", "unpack it with unlz4"},
    {0, "PK\x03\x04"sv, "a zip archive", "unpack it with unzip and name the text files in it"},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it and name the text files in it"},
    {257, "ustar"sv, "a tar archive", "unpack it with tar xf and name the text files in it"},
    {0, "\x93NUMPY"sv, "a NumPy array",
     "numpy.load(FILE).astype(\"uint16\").tofile(\"NAME.bin\") writes tokens that can be read"},
    {0, "%PDF-"sv, "a PDF", "pdftotext takes the text out"},
    {0, "SQLite format 3\0"sv, "an SQLite database", "write its text as .jsonl, one {\"text\": ...} a line"},
    {0, "\xff\xfe"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW makes it UTF-8"},
    {0, "\xfe\xff"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW makes it UTF-8"},
    {0, "\x7f\x45LF"sv, "an ELF program", ""},
    {0, "\xfe\xed\xfa\xce"sv, "a Mach-O program", ""},
    {0, "\xfe\xed\xfa\xcf"sv, "a Mach-O program", ""},
    {0, "\xce\xfa\xed\xfe"sv, "a Mach-O program", ""},
    {0, "\xcf\xfa\xed\xfe"sv, "a Mach-O program", ""},
    {0, "\xca\xfe\xba\xbe"sv, "a Mach-O program or a Java class", ""},
    {0, "\x89PNG"sv, "a PNG image", ""},
    {0, "\xff\xd8\xff"sv, "a JPEG image", ""},
    {0, "II*\0"sv, "a TIFF image", ""},
    {0, "MM\0*"sv, "a TIFF image", ""},
    {8, "WEBPVP8"sv, "a WebP image", ""},
    {5, "\0\0\0{\""sv, "the weights of a model (safetensors)", ""},
};

bool no_text(char c, std::string_view separator) {
  return (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) &&
         "\t\n\v\f\r\b\x1b"sv.find(c) == std::string_view::npos && separator.find(c) == separator.npos;
}

// Letters with which a text may begin as well: control characters follow them.
constexpr Format kLetters[] = {
    {0, "PAR1"sv, "a Parquet file", "give it a name that ends in .parquet, or pandas.read_parquet(FILE)"},
    {0, "ARROW1"sv, "an Arrow file", "pandas.read_feather(FILE)"},
    {0, "FEA1"sv, "a Feather file", "pandas.read_feather(FILE)"},
    {0, "BZh"sv, "bzip2", "unpack it with bunzip2"},
    {0, "MZ"sv, "a Windows program", ""},
    {0, "BM"sv, "a BMP image", ""},
    {0, "GIF8"sv, "a GIF image", ""},
    {4, "ftyp"sv, "a video or an image", ""},
    {0, "GGUF"sv, "the weights of a model (GGUF)", ""},
};
constexpr Format kArrowStream = {0, "\xff\xff\xff\xff"sv, "an Arrow stream", "datasets.Dataset.from_file(FILE)"};

const Format* known(std::string_view start) {
  const auto is = [&](const Format& f) { return start.substr(std::min(f.at, start.size())).starts_with(f.magic); };
  if (const auto it = std::ranges::find_if(kFormats, is); it != std::end(kFormats)) return it;
  // The size of what follows is a number below 65536.
  if (is(kArrowStream) && start.size() > 8 && start.substr(6, 2) == "\0\0"sv) return &kArrowStream;
  if (std::ranges::none_of(start.substr(0, 64), [](char c) { return no_text(c, ""); })) return nullptr;
  const auto it = std::ranges::find_if(kLetters, is);
  return it == std::end(kLetters) ? nullptr : it;
}

// Bytes of no character. A character that the sample's ends have cut counts for three at most.
std::size_t outside_utf8(std::string_view sample) {
  std::size_t bad = 0;
  while (!sample.empty()) {
    sample.remove_prefix(valid_utf8(sample));
    const std::size_t one = std::min<std::size_t>(sample.size(), 1);
    bad += one;
    sample.remove_prefix(one);
  }
  return bad;
}

}  // namespace

std::string_view known_format(std::string_view start) {
  const Format* const format = known(start);
  return format && format->magic.size() >= 4 ? format->name : std::string_view();
}

std::string why_not_text(std::string_view start, std::string_view middle, std::string_view separator, bool any_bytes) {
  constexpr std::string_view kBytes = "name text files, or set data.tokenizer=bytes to train on bytes of any kind";
  if (const Format* f = known(start); f && (!any_bytes || !f->instead.empty()))
    return fmt::format("this is {}, not text; {}{}", f->name, f->instead.empty() ? kBytes : f->instead,
                       f->instead.ends_with("(FILE)") ? kLines : "");
  if (any_bytes) return {};
  // Text in an encoding of old has some bytes that are no UTF-8, and dirty text some control characters. Programs and
  // numbers have far more: a sample of random bytes has 11% control characters and 45% outside of UTF-8.
  constexpr std::size_t kControlsOneIn = 100, kOutsideOneIn = 10, kFew = 2, kCut = 6;
  std::size_t controls = 0, outside = 0;
  for (const std::string_view sample : {start, middle}) {
    controls += static_cast<std::size_t>(std::ranges::count_if(sample, [&](char c) { return no_text(c, separator); }));
    outside += outside_utf8(sample);
  }
  const std::size_t bytes = start.size() + middle.size();
  if (controls > kFew && controls * kControlsOneIn > bytes)
    return fmt::format("this is not text: of {} bytes {} are control characters; {}", bytes, controls, kBytes);
  if (outside > kCut && outside * kOutsideOneIn > bytes)
    return fmt::format(
        "this is not UTF-8 text: of {} bytes {} are none of it; iconv -f ENCODING -t UTF-8 FILE > NEW "
        "makes it so where it is text, and data.tokenizer=bytes trains on bytes of any kind",
        bytes, outside);
  return {};
}

std::string why_not_one_document(const Path& path, std::string_view separator_key) {
  const Path end = (compression_of(path) == Compression::none ? path : path.stem()).extension();
  if (end != ".csv" && end != ".tsv") return {};
  return fmt::format(
      "a table is not one document; pandas.read_csv(FILE{}){}, and {}='\\n' takes each line as a document",
      end == ".tsv" ? ", sep=\"\\t\"" : "", kLines, separator_key);
}

}  // namespace redline::data
