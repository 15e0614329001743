// The registers of sums in the statements of the matrix instruction: an assembler statement has to name each
// of its registers, and of 64 by N sums a thread has N / 2. DGEMMA_SUM_NAMES_n names the first n operands,
// DGEMMA_SUMS_n are these: d[0] and on.
#pragma once

#define DGEMMA_SUMS_FROM(i)                                                                                 \
    "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
        "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

#define DGEMMA_SUM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define DGEMMA_SUM_NAMES_16 DGEMMA_SUM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DGEMMA_SUM_NAMES_24 DGEMMA_SUM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define DGEMMA_SUM_NAMES_32 DGEMMA_SUM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DGEMMA_SUM_NAMES_40 DGEMMA_SUM_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DGEMMA_SUM_NAMES_48 DGEMMA_SUM_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DGEMMA_SUM_NAMES_56 DGEMMA_SUM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DGEMMA_SUM_NAMES_64 DGEMMA_SUM_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DGEMMA_SUM_NAMES_72 DGEMMA_SUM_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define DGEMMA_SUM_NAMES_80 DGEMMA_SUM_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define DGEMMA_SUM_NAMES_96 \
    DGEMMA_SUM_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DGEMMA_SUM_NAMES_128                                                                             \
    DGEMMA_SUM_NAMES_96                                                                                  \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define DGEMMA_SUMS_8 DGEMMA_SUMS_FROM(0)
#define DGEMMA_SUMS_16 DGEMMA_SUMS_8, DGEMMA_SUMS_FROM(8)
#define DGEMMA_SUMS_24 DGEMMA_SUMS_16, DGEMMA_SUMS_FROM(16)
#define DGEMMA_SUMS_32 DGEMMA_SUMS_24, DGEMMA_SUMS_FROM(24)
#define DGEMMA_SUMS_40 DGEMMA_SUMS_32, DGEMMA_SUMS_FROM(32)
#define DGEMMA_SUMS_48 DGEMMA_SUMS_40, DGEMMA_SUMS_FROM(40)
#define DGEMMA_SUMS_56 DGEMMA_SUMS_48, DGEMMA_SUMS_FROM(48)
#define DGEMMA_SUMS_64 DGEMMA_SUMS_56, DGEMMA_SUMS_FROM(56)
#define DGEMMA_SUMS_72 DGEMMA_SUMS_64, DGEMMA_SUMS_FROM(64)
#define DGEMMA_SUMS_80 DGEMMA_SUMS_72, DGEMMA_SUMS_FROM(72)
#define DGEMMA_SUMS_96 DGEMMA_SUMS_80, DGEMMA_SUMS_FROM(80), DGEMMA_SUMS_FROM(88)
#define DGEMMA_SUMS_128 \
    DGEMMA_SUMS_96, DGEMMA_SUMS_FROM(96), DGEMMA_SUMS_FROM(104), DGEMMA_SUMS_FROM(112), DGEMMA_SUMS_FROM(120)
