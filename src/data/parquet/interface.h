// The interface of the Parquet module (module.cpp, a shared object that is linked with Arrow), which
// data/input/parquet.cpp loads. It is C, without types of the standard library: module and program may be built
// apart.
#pragma once

#include <cstdint>

extern "C" {

enum RedlineParquetProblem : std::int32_t {
  kParquetBadFile = 1,  // its bytes
  kParquetNoColumn,     // no such column
  kParquetNoText,       // the column holds no text
  kParquetSystem,       // the disk
  kParquetMemory,
};

struct RedlineParquetError {
  RedlineParquetProblem problem;
  char text[2048];  // a clause, closed by 0
};

struct RedlineParquetRow {
  const char* bytes;  // null: the row is
  std::int64_t size;
};

struct RedlineParquetFile;
struct RedlineParquetGroup;

constexpr std::int32_t kParquetInterface = 1;

// A failed call returns null or -1, with the reason in the last argument.
struct RedlineParquet {
  std::int32_t interface;  // kParquetInterface of the module
  const char* arrow;       // its version: "26.0.1"

  // `column`: a leaf of the schema, the names on the way joined by dots.
  RedlineParquetFile* (*open)(const char* path, const char* column, RedlineParquetError*);
  void (*close)(RedlineParquetFile*);  // after its last group
  std::int64_t (*groups)(const RedlineParquetFile*);
  std::int64_t (*rows)(const RedlineParquetFile*, std::int64_t group);

  // The rows of a group, but for the first `from`. Groups of one file may be read at the same time, by a thread each.
  RedlineParquetGroup* (*open_group)(RedlineParquetFile*, std::int64_t group, std::int64_t from, RedlineParquetError*);
  void (*close_group)(RedlineParquetGroup*);
  // How many came, 0 at the end. `*rows` and their bytes last until the next call.
  std::int64_t (*next)(RedlineParquetGroup*, const RedlineParquetRow** rows, RedlineParquetError*);
};

// The one symbol of the module: const RedlineParquet* redline_parquet().
using RedlineParquetEntry = const RedlineParquet* (*)();

}  // extern "C"
