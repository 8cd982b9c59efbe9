/* Compiled code of hpcfl/crypto/native.py.
 *
 * hpcfl_mask and hpcfl_masks add keystreams to a vector over a field of q = `modulus` elements, in one
 * pass; 0 stands for a ring of all words. A word is cut to the bits of `low`. For a rejected word
 * w > q, addition adds w and subtraction subtracts w - q, modulo 2^(bits of the type); the word q
 * changes nothing. The caller corrects these places.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
/* Bytes of a line of the cache, and of a long vector that masks are added to at a time. */
enum { LINE = 64, PIECE = 1 << 13 };
/* Compiled twice: for processors with vectors of 256 bits, and for others. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* Compilers turn this loop into vector instructions, one loop for either sign. It only subtracts,
 * which needs one comparison: instead of a word it adds, it subtracts the modulus less the word. */
#define MASK(name, type)                                                                           \
    WIDE static int name(type *vector, const type *words, size_t count, type modulus, type low,    \
                         int subtract)                                                             \
    {                                                                                              \
        type largest = 0;                                                                          \
        if (!modulus) {                                                                            \
            for (size_t k = 0; k < count; k++)                                                     \
                vector[k] += subtract ? (type)(0 - words[k]) : words[k];                           \
            return 0;                                                                              \
        }                                                                                          \
        for (size_t k = 0; k < count; k++) {                                                       \
            type word = words[k] & low, old = vector[k];                                           \
            largest = word > largest ? word : largest;                                             \
            word = subtract ? word : (type)(modulus - word);                                       \
            type less = (type)(old - word);                                                        \
            vector[k] = old < word ? (type)(less + modulus) : less;                                \
        }                                                                                          \
        return modulus && largest >= modulus;                                                      \
    }
MASK(mask8, uint8_t)
MASK(mask16, uint16_t)
MASK(mask32, uint32_t)

/* Adds `size` words of `bytes` bytes each to a vector, or subtracts them. Returns 1 if a word was
 * rejected, 0 if none was, and -1 for words of another size. */
EXPORTED int hpcfl_mask(void *vector, const void *words, size_t size, int bytes, uint32_t modulus,
                        uint32_t low, int subtract)
{
    return bytes == 1   ? mask8(vector, words, size, modulus, low, subtract)
           : bytes == 2 ? mask16(vector, words, size, modulus, low, subtract)
           : bytes == 4 ? mask32(vector, words, size, modulus, low, subtract)
                        : -1;
}

/* AES-128-CTR of OpenSSL. */
typedef struct {
    void *(*create)(void);
    int (*init)(void *, const void *, void *, const uint8_t *, const uint8_t *);
    int (*update)(void *, uint8_t *, int *, const uint8_t *, int);
    void (*destroy)(void *);
    const void *mode;
} aes;
enum { AES_BYTES = 16, TOGETHER = 16 };

/* Adds the keystreams of keys, which lie end to end, to a vector, or subtracts those of `minus`. Each
 * begins with the same counter. Returns the number of the first key from `begin` on with a rejected
 * word, or `count`, or -1 where this cannot be computed. In a ring, some keys take turns on every piece
 * of the vector, which stays in the smallest cache. */
EXPORTED long hpcfl_masks(const aes *f, uint8_t *vector, size_t size, int bytes, uint32_t modulus,
                          uint32_t low, const uint8_t *keys, const uint8_t *counter,
                          const uint8_t *minus, long begin, long count)
{
    static const uint8_t zeros[PIECE];
    uint32_t words[PIECE / sizeof(uint32_t)];
    size_t total = size * bytes, part;
    void *contexts[TOGETHER] = {NULL};
    long k = begin, step = modulus ? 1 : TOGETHER, most = count - k < step ? count - k : step;
    int works = 1, rejected = 0, written;
    for (long j = 0; works && j < most; j++)
        works = (contexts[j] = f->create()) && f->init(contexts[j], f->mode, NULL, NULL, NULL);
    for (; works && k < count; k += most) {
        most = count - k < step ? count - k : step;
        for (long j = 0; works && j < most; j++)
            works = f->init(contexts[j], NULL, NULL, keys + AES_BYTES * (k + j), counter);
        for (size_t done = 0; works && done < total; done += part) {
            part = total - done < PIECE ? total - done : PIECE;
            for (long j = 0; works && j < most; j++) {
                /* The processor's own prefetching ends at a page. None fails, not even behind the end. */
                for (size_t at = LINE * j; at < PIECE; at += LINE * most)
                    __builtin_prefetch(vector + done + 2 * PIECE + at, 1);
                works = f->update(contexts[j], (uint8_t *)words, &written, zeros, (int)part);
                rejected |= hpcfl_mask(vector + done, words, part / bytes, bytes, modulus, low,
                                       minus[k + j]);
            }
        }
        if (rejected)
            break;
    }
    for (long j = 0; j < TOGETHER && contexts[j]; j++)
        f->destroy(contexts[j]);
    return works && rejected >= 0 ? k : -1;
}

/* Values that are quantised at a time. */
enum { SOME = 256 };

/* Quantises up to `SOME` values; see hpcfl_quantise. Returns 1, and quantises none, if a magnitude is above
 * `clip`, and -1 if one is not finite. Bits of doubles are compared and composed, because processors
 * without vectors of 512 bits have no instructions for it. */
#define QUANTISE(name, type, bits)                                                                  \
    WIDE static int name(const type *restrict values, int count, double clip, double scale,         \
                           const uint64_t *restrict draws, uint32_t modulus,                        \
                           uint32_t *restrict words)                                                \
    {                                                                                               \
        double sums[SOME], low, high;                                                               \
        bits magnitude, most = 0;                                                                   \
        type largest;                                                                               \
        for (int k = 0; k < count; k++) {                                                           \
            memcpy(&magnitude, values + k, sizeof magnitude);                                       \
            magnitude <<= 1; /* without the sign */                                                 \
            most = magnitude > most ? magnitude : most;                                             \
        }                                                                                           \
        most >>= 1;                                                                                 \
        memcpy(&largest, &most, sizeof largest);                                                    \
        if (!(largest <= clip))                                                                     \
            return largest - largest == 0 ? 1 : -1;                                                 \
        for (int k = 0; k < count; k++) {                                                           \
            uint64_t above = draws[k] >> 43 | 0x41e0000000000000;           /* 2^31 + high 2^-21 */ \
            uint64_t below = (uint32_t)(draws[k] >> 11) | 0x3fe0000000000000; /* 1/2 + low 2^-53 */ \
            memcpy(&high, &above, sizeof high);                                                     \
            memcpy(&low, &below, sizeof low);                                                       \
            sums[k] = high - 0x1.00000001p31 + low + values[k] * scale;                             \
        }                                                                                           \
        for (int k = 0; k < count; k++) {                                                           \
            int32_t whole = (int32_t)floor(sums[k]);                                                \
            words[k] = (uint32_t)whole + (whole < 0 ? modulus : 0);                                 \
        }                                                                                           \
        return 0;                                                                                   \
    }

QUANTISE(quantise32, float, uint32_t)
QUANTISE(quantise64, double, uint64_t)

/* Writes the elements, of `bytes` bytes each, of real values of `wide` bytes, 4 or 8: values are cut to
 * `clip`, scaled, and rounded up with a probability of their fraction. `state` is that of NumPy's SFC64,
 * whose next 64 bits give the draw of 53 bits for a value. Returns the number of values that were cut, or
 * -1 if one is not finite. */
EXPORTED long hpcfl_quantise(const uint8_t *values, size_t size, int wide, double clip, double scale,
                             const uint64_t *state, uint32_t modulus, int bytes, uint8_t *elements)
{
    uint64_t draws[SOME], a = state[0], b = state[1], c = state[2], counter = state[3];
    uint32_t words[SOME];
    double cut[SOME];
    long beyond = 0;
    for (size_t start = 0; start < size; start += SOME) {
        int count = size - start < SOME ? (int)(size - start) : SOME, above;
        const double *longs = (const double *)values + start;
        const float *shorts = (const float *)values + start;
        for (int k = 0; k < SOME * wide; k += LINE)
            __builtin_prefetch(values + start * wide + PIECE + k);
        for (int k = 0; k < count; k++) {
            draws[k] = b + counter++ + a;
            a = b ^ b >> 11;
            b = c + (c << 3);
            c = (c << 24 | c >> 40) + draws[k];
        }
        above = wide == 8 ? quantise64(longs, count, clip, scale, draws, modulus, words)
                          : quantise32(shorts, count, clip, scale, draws, modulus, words);
        if (above < 0)
            return -1;
        for (int k = 0; above && k < count; k++) {
            double value = wide == 8 ? longs[k] : shorts[k];
            cut[k] = value > clip ? clip : value < -clip ? -clip : value;
            beyond += cut[k] != value;
        }
        if (above)
            quantise64(cut, count, clip, scale, draws, modulus, words);
        for (int k = 0; bytes == 1 && k < count; k++)
            elements[start + k] = (uint8_t)words[k];
        for (int k = 0; bytes == 2 && k < count; k++)
            ((uint16_t *)elements)[start + k] = (uint16_t)words[k];
        for (int k = 0; bytes == 4 && k < count; k++)
            ((uint32_t *)elements)[start + k] = words[k];
    }
    return beyond;
}

/* SHA-256 of OpenSSL, and room for its state. */
typedef struct {
    int (*init)(void *);
    int (*update)(void *, const void *, size_t);
    int (*final)(uint8_t *, void *);
} sha256;
enum { BLOCK = 64, DIGEST = 32, STATE_WORDS = 64 };

static int hash(const sha256 *f, const uint8_t *key, uint8_t pad, const uint8_t *text, size_t size,
                const uint8_t *end, uint8_t *digest)
{
    uint64_t state[STATE_WORDS];
    uint8_t block[BLOCK];
    for (int k = 0; k < BLOCK; k++)
        block[k] = (k < DIGEST ? key[k] : 0) ^ pad;
    return f->init(state) && f->update(state, block, BLOCK) && f->update(state, text, size) &&
           f->update(state, end, end != NULL) && f->final(digest, state);
}

/* HMAC (RFC 2104) of a text and the byte at `end`, if any, with a key of 32 bytes. */
static int hmac(const sha256 *f, const uint8_t *key, const uint8_t *text, size_t size,
                const uint8_t *end, uint8_t *digest)
{
    uint8_t inner[DIGEST];
    return hash(f, key, 0x36, text, size, end, inner) &&
           hash(f, key, 0x5c, inner, DIGEST, NULL, digest);
}

/* Derives keys of `length` bytes, at most 32, from secrets that lie end to end, by HKDF without salt
 * (RFC 5869). Context k ends before byte `ends[k]`. Returns whether OpenSSL made all hashes. */
EXPORTED int hpcfl_derive(const sha256 *f, const uint8_t *secrets, size_t secret_bytes,
                          const uint8_t *contexts, const uint64_t *ends, size_t count,
                          size_t length, uint8_t *derived)
{
    const uint8_t salt[DIGEST] = {0}, first = 1;
    uint8_t key[DIGEST], digest[DIGEST];
    for (size_t k = 0, start = 0; k < count; start = ends[k++]) {
        if (!hmac(f, salt, secrets + k * secret_bytes, secret_bytes, NULL, key) ||
            !hmac(f, key, contexts + start, ends[k] - start, &first, digest))
            return 0;
        memcpy(derived + k * length, digest, length);
    }
    return 1;
}

/* Products modulo x^DIM + 1, for hpcfl/crypto/ringlwe.py. The two digits of a word, less HALF, are the
 * parts of a complex coefficient. A step takes a polynomial modulo x^2n - w^2 to those modulo x^n - w
 * and x^n + w, the nodes 2k and 2k + 1 below node k of a tree with w[k], whose root is node 1. What is
 * left after the last step, polynomials modulo x^LEAF - w, are multiplied term by term. */
enum { DIM = 2048, LEAF = 4, LEAVES = DIM / LEAF, BITS = 26, HALF = 1 << 25, LOW = 2 * HALF - 1 };
typedef double values[DIM], complex[2];

/* Does the steps to polynomials of n coefficients, or undoes them times two; faster for constants n. */
static inline __attribute__((always_inline)) void steps(values *x, size_t n, const complex *w, int undo)
{
    double *a = x[0], *b = x[1];
    for (size_t k = DIM / 2 / n; k < DIM / n; k++, a += 2 * n, b += 2 * n)
        for (size_t j = 0; j < n; j++) {
            double re = w[k][0], im = w[k][1], p = a[j], q = b[j], r = a[j + n], s = b[j + n];
            double u = undo ? r : re * r - im * s, v = undo ? s : re * s + im * r;
            a[j] = p + u, b[j] = q + v;
            p -= u, q -= v;
            a[j + n] = undo ? re * p + im * q : p, b[j + n] = undo ? re * q - im * p : q;
        }
}

/* Transforms polynomials, or multiplies them by a key, given the transforms of its products with the
 * first LEAF powers of x. Products are right in the lowest 52 bits of their words. */
EXPORTED WIDE void hpcfl_multiply(size_t count, const uint64_t *words, void *results,
                                  const complex *w, const values (*key)[2])
{
    const double rounder = 3LL << 51; /* leaves no bits for fractions */
    values x[2], y[2];
    for (size_t i = 0; i < count; i++, words += DIM) {
        for (size_t k = 0; k < DIM; k++)
            x[0][k] = (int)(words[k] & LOW) - HALF, x[1][k] = (int)(words[k] >> BITS & LOW) - HALF;
        steps(x, 1024, w, 0), steps(x, 512, w, 0), steps(x, 256, w, 0), steps(x, 128, w, 0);
        steps(x, 64, w, 0), steps(x, 32, w, 0), steps(x, 16, w, 0), steps(x, 8, w, 0), steps(x, 4, w, 0);
        if (!key) {
            memcpy((values *)results + 2 * i, x, sizeof x);
            continue;
        }
        for (size_t k = 0; k < DIM; k += LEAF)
            for (size_t j = k; j < k + LEAF; j++) {
                double re = 0, im = 0;
                for (size_t l = 0; l < LEAF; l++) {
                    re += x[0][k + l] * key[l][0][j] - x[1][k + l] * key[l][1][j];
                    im += x[0][k + l] * key[l][1][j] + x[1][k + l] * key[l][0][j];
                }
                y[0][j] = re, y[1][j] = im;
            }
        steps(y, 4, w, 1), steps(y, 8, w, 1), steps(y, 16, w, 1), steps(y, 32, w, 1), steps(y, 64, w, 1);
        steps(y, 128, w, 1), steps(y, 256, w, 1), steps(y, 512, w, 1), steps(y, 1024, w, 1);
        for (size_t k = 0; k < DIM; k++) {
            uint64_t re = (int64_t)(y[0][k] / LEAVES + rounder), im = (int64_t)(y[1][k] / LEAVES + rounder);
            ((uint64_t *)results)[i * DIM + k] = re + (im << BITS) - ((uint64_t)1 << 51);
        }
    }
}

/* Python finds no other name to look for in an extension module that ctypes loads. */
EXPORTED void *PyInit__kernel(void)
{
    return NULL;
}
