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

/* Compilers turn this loop into vector instructions, one loop for either sign. It only subtracts,
 * which needs one comparison: instead of a word it adds, it subtracts the modulus less the word. */
#define MASK(name, type, target)                                                                  \
    target static int name(type *vector, const type *words, size_t count, type modulus, type low, \
                           int subtract)                                                          \
    {                                                                                             \
        type largest = 0;                                                                         \
        if (!modulus) {                                                                           \
            for (size_t k = 0; k < count; k++)                                                    \
                vector[k] += subtract ? (type)(0 - words[k]) : words[k];                          \
            return 0;                                                                             \
        }                                                                                         \
        for (size_t k = 0; k < count; k++) {                                                      \
            type word = words[k] & low, old = vector[k];                                          \
            largest = word > largest ? word : largest;                                            \
            word = subtract ? word : (type)(modulus - word);                                      \
            type less = (type)(old - word);                                                       \
            vector[k] = old < word ? (type)(less + modulus) : less;                               \
        }                                                                                         \
        return modulus && largest >= modulus;                                                     \
    }

#define EACH_WIDTH(suffix, target)           \
    MASK(mask8##suffix, uint8_t, target)     \
    MASK(mask16##suffix, uint16_t, target)   \
    MASK(mask32##suffix, uint32_t, target)

#if defined(__x86_64__) && defined(__GNUC__)
#define COMPILED(MACRO) MACRO(_plain, ) MACRO(_avx2, __attribute__((target("avx2"))))
#define BEST(name) (__builtin_cpu_supports("avx2") ? name##_avx2 : name##_plain)
#else
#define COMPILED(MACRO) MACRO(_plain, )
#define BEST(name) name##_plain
#endif

COMPILED(EACH_WIDTH)

#define EXPORTED __attribute__((visibility("default")))

/* Adds `size` words of `bytes` bytes each to a vector, or subtracts them. Returns 1 if a word was
 * rejected, 0 if none was, and -1 for words of another size. */
EXPORTED int hpcfl_mask(void *vector, const void *words, size_t size, int bytes, uint32_t modulus,
                        uint32_t low, int subtract)
{
    switch (bytes) {
    case 1:
        return BEST(mask8)(vector, words, size, (uint8_t)modulus, (uint8_t)low, subtract);
    case 2:
        return BEST(mask16)(vector, words, size, (uint16_t)modulus, (uint16_t)low, subtract);
    case 4:
        return BEST(mask32)(vector, words, size, modulus, low, subtract);
    default:
        return -1;
    }
}

/* AES-128-CTR of OpenSSL. */
typedef struct {
    void *(*create)(void);
    int (*init)(void *, const void *, void *, const uint8_t *, const uint8_t *);
    int (*update)(void *, uint8_t *, int *, const uint8_t *, int);
    void (*destroy)(void *);
    const void *mode;
} aes;
enum { AES_BYTES = 16, PIECE = 1 << 13, TOGETHER = 16 };

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
#define QUANTISE(name, type, bits, target)                                                          \
    target static int name(const type *restrict values, int count, double clip, double scale,       \
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

#define EACH_TYPE(suffix, target)                         \
    QUANTISE(quantise32##suffix, float, uint32_t, target) \
    QUANTISE(quantise64##suffix, double, uint64_t, target)

COMPILED(EACH_TYPE)

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
        for (int k = 0; k < count; k++) {
            draws[k] = b + counter++ + a;
            a = b ^ b >> 11;
            b = c + (c << 3);
            c = (c << 24 | c >> 40) + draws[k];
        }
        above = wide == 8 ? BEST(quantise64)(longs, count, clip, scale, draws, modulus, words)
                          : BEST(quantise32)(shorts, count, clip, scale, draws, modulus, words);
        if (above < 0)
            return -1;
        for (int k = 0; above && k < count; k++) {
            double value = wide == 8 ? longs[k] : shorts[k];
            cut[k] = value > clip ? clip : value < -clip ? -clip : value;
            beyond += cut[k] != value;
        }
        if (above)
            BEST(quantise64)(cut, count, clip, scale, draws, modulus, words);
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

/* Python finds no other name to look for in an extension module that ctypes loads. */
EXPORTED void *PyInit__kernel(void)
{
    return NULL;
}
