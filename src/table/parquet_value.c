#include "table/parquet_value.h"

#include "table/table_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS_PER_DAY  86400
#define EPOCH_JULIAN_DAY 2440588 /* 1970-01-01 */
#define MOST_DECIMAL     32      /* bytes */
#define MOST_DIGITS      80      /* of such a number: 78 */
#define TIME_STRING      80
#define BILLION          INT64_C(1000000000)

/* Quotient rounded down, and what is left: never negative. */
static int64_t divide(int64_t *rest, int64_t value, int64_t by)
{
    int64_t quotient = value / by;
    *rest = value % by;
    if (*rest < 0) {
        *rest += by;
        quotient--;
    }
    return quotient;
}

/* The day of the proleptic Gregorian calendar that is `days` after 1970-01-01, as "2024-07-26". Years begin in March here,
 * so that a leap day is a year's last; 146097 days are 400 years. */
static void put_date(char *out, size_t room, int64_t days)
{
    int64_t day_of_era, era = divide(&day_of_era, days + 719468, 146097);
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153; /* from March */
    int64_t day = day_of_year - (153 * month + 2) / 5 + 1;
    int64_t year = era * 400 + year_of_era + (month >= 10);
    snprintf(out, room, "%04lld-%02lld-%02lld", (long long)year,
             (long long)(month < 10 ? month + 3 : month - 9), (long long)day);
}

/* `count` of `unit` in a second, after midnight: "12:30:00"; a fraction that is not 0 has six digits, or nine where it needs
 * them (pandas' isoformat). */
static void put_time(char *out, size_t room, int64_t count, int64_t unit)
{
    long long seconds = count / unit, nanoseconds = count % unit * (BILLION / unit);
    char fraction[32] = "";
    if (nanoseconds % 1000)
        snprintf(fraction, sizeof fraction, ".%09lld", nanoseconds);
    else if (nanoseconds)
        snprintf(fraction, sizeof fraction, ".%06lld", nanoseconds / 1000);
    snprintf(out, room, "%02lld:%02lld:%02lld%s", seconds / 3600, seconds / 60 % 60, seconds % 60,
             fraction);
}

static void put_timestamp(char *out, size_t room, int64_t days, int64_t in_day, int64_t unit,
                          bool utc)
{
    char date[TIME_STRING], time[TIME_STRING];
    put_date(date, sizeof date, days);
    put_time(time, sizeof time, in_day, unit);
    snprintf(out, room, "%sT%s%s", date, time, utc ? "+00:00" : "");
}

static json_t *time_json(const tsr_parquet_value *value, const tsr_parquet_node *leaf)
{
    char out[2 * TIME_STRING + 8];
    int64_t unit = leaf->scale == 3 ? 1000 : leaf->scale == 6 ? 1000000 : BILLION, in_day;
    if (leaf->meaning == TSR_PARQUET_DATE) {
        put_date(out, sizeof out, value->bits);
    } else if (leaf->type == TSR_PARQUET_INT96) { /* nanoseconds of a day, and its Julian number */
        int64_t nanoseconds;
        int32_t day;
        memcpy(&nanoseconds, value->data, 8);
        memcpy(&day, value->data + 8, 4);
        int64_t more = divide(&in_day, nanoseconds, SECONDS_PER_DAY * unit);
        put_timestamp(out, sizeof out, (int64_t)day - EPOCH_JULIAN_DAY + more, in_day, unit, false);
    } else {
        int64_t days = divide(&in_day, value->bits, SECONDS_PER_DAY * unit);
        if (leaf->meaning == TSR_PARQUET_TIME)
            put_time(out, sizeof out, in_day, unit);
        else
            put_timestamp(out, sizeof out, days, in_day, unit, leaf->utc);
    }
    return json_string(out);
}

/* A number of two's complement, highest byte first, as its digits; returns how many. */
static int put_digits(char digits[MOST_DIGITS], bool *negative, const uint8_t *data, size_t bytes)
{
    uint8_t number[MOST_DECIMAL];
    int count = 0;
    *negative = bytes && data[0] & 0x80;
    unsigned carry = *negative;
    for (size_t i = bytes; i-- > 0;) {
        carry += *negative ? (uint8_t)~data[i] : data[i];
        number[i] = (uint8_t)carry;
        carry >>= 8;
    }
    for (size_t first = 0;;) { /* division by ten, from the highest byte that is not 0 */
        while (first < bytes && !number[first])
            first++;
        if (first == bytes)
            return count;
        unsigned rest = 0;
        for (size_t i = first; i < bytes; i++) {
            rest = rest << 8 | number[i];
            number[i] = (uint8_t)(rest / 10);
            rest %= 10;
        }
        digits[count++] = (char)('0' + rest); /* the lowest first */
    }
}

static json_t *decimal_json(const tsr_parquet_value *value, const tsr_parquet_node *leaf)
{
    char digits[MOST_DIGITS], out[2 * MOST_DIGITS + 4];
    uint8_t whole[8];
    const uint8_t *data = value->data;
    size_t bytes = value->bytes;
    bool negative;
    if (leaf->type == TSR_PARQUET_INT32 || leaf->type == TSR_PARQUET_INT64) {
        for (int i = 0; i < 8; i++)
            whole[i] = (uint8_t)((uint64_t)value->bits >> (56 - 8 * i));
        data = whole;
        bytes = sizeof whole;
    }
    int count = put_digits(digits, &negative, data, bytes), at = 0;
    while (count <= leaf->scale) /* 0 before the point, and behind it */
        digits[count++] = '0';
    if (negative)
        out[at++] = '-';
    while (count > 0) {
        if (count == leaf->scale)
            out[at++] = '.';
        out[at++] = digits[--count];
    }
    out[at] = 0;
    return json_string(out);
}

static json_t *uuid_json(const uint8_t *data)
{
    char out[37];
    int at = 0;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += snprintf(out + at, sizeof out - (size_t)at, "%02x", data[i]);
    }
    return json_string(out);
}

/* IEEE 754 binary16. */
static double half(const uint8_t *data)
{
    int bits = data[0] | data[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(fraction + 1024, exponent - 25);
    return bits >> 15 ? -size : size;
}

static double number(const tsr_parquet_value *value, const tsr_parquet_node *leaf)
{
    double d;
    float f;
    if (leaf->meaning == TSR_PARQUET_FLOAT16)
        return half(value->data);
    if (leaf->type == TSR_PARQUET_DOUBLE) {
        memcpy(&d, &value->bits, sizeof d);
        return d;
    }
    memcpy(&f, &value->bits, sizeof f);
    return f;
}

static json_t *number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static tsr_status string_json(json_t **out, const tsr_parquet_value *value, int node,
                              const tsr_parquet_shared *file)
{
    const char *data = (const char *)value->data;
    char fault[TSR_TABLE_FAULT_BYTES];
    *out = tsr_table_string(data, value->bytes);
    if (*out)
        return TSR_OK;
    if (!tsr_table_fault(fault, data, value->bytes))
        return tsr_fail(TSR_ENOMEM, "%s: no memory for a value", file->path);
    return tsr_parquet_bad(file, node, "%s; leave columns that hold no text out of the file",
                           fault);
}

static tsr_status plain_json(json_t **out, const tsr_parquet_value *value, int node,
                             const tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = &file->schema.nodes[node];
    switch (leaf->type) {
    case TSR_PARQUET_BOOLEAN:
        *out = json_boolean(value->bits);
        break;
    case TSR_PARQUET_INT32:
    case TSR_PARQUET_INT64:
        *out = json_integer(value->bits);
        break;
    case TSR_PARQUET_FLOAT:
    case TSR_PARQUET_DOUBLE:
        *out = number_json(number(value, leaf));
        break;
    default:
        return string_json(out, value, node, file);
    }
    return TSR_OK;
}

static tsr_status unsigned_json(json_t **out, const tsr_parquet_value *value, int node,
                                const tsr_parquet_shared *file)
{
    bool four = file->schema.nodes[node].type == TSR_PARQUET_INT32;
    int64_t whole = four ? (int64_t)(uint32_t)value->bits : value->bits;
    if (whole < 0)
        return tsr_parquet_bad(file, node,
                               "the value is %llu, but a whole number is below 2^63; write it as a "
                               "string",
                               (unsigned long long)whole);
    *out = json_integer(whole);
    return TSR_OK;
}

tsr_status tsr_parquet_json(json_t **out, const tsr_parquet_value *value, int node,
                            const tsr_parquet_shared *file)
{
    const tsr_parquet_node *leaf = &file->schema.nodes[node];
    tsr_status status = TSR_OK;
    *out = NULL;
    switch (leaf->meaning) {
    case TSR_PARQUET_PLAIN:
        status = plain_json(out, value, node, file);
        break;
    case TSR_PARQUET_UNSIGNED:
        status = unsigned_json(out, value, node, file);
        break;
    case TSR_PARQUET_DECIMAL:
        if (value->bytes > MOST_DECIMAL)
            return tsr_parquet_bad(file, node, "a decimal of %zu bytes; at most %d are read",
                                   value->bytes, MOST_DECIMAL);
        *out = decimal_json(value, leaf);
        break;
    case TSR_PARQUET_UUID:
        *out = uuid_json(value->data);
        break;
    case TSR_PARQUET_FLOAT16:
        *out = number_json(number(value, leaf));
        break;
    default:
        *out = time_json(value, leaf);
    }
    return status < 0 || *out ? status
                              : tsr_fail(TSR_ENOMEM, "%s: no memory for a value", file->path);
}
