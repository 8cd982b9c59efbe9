/* Compiled code of hpcfl/crypto/native.py.
 *
 * hpcfl_mask and hpcfl_masks add keystreams to a vector over a field of q = `modulus` elements, in one
 * pass; 0 stands for a ring of all words. A word is cut to the bits of `low`. For a rejected word
 * w > q, addition adds w and subtraction subtracts w - q, modulo 2^(bits of the type); the word q
 * changes nothing. The caller corrects these places.
 */
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

EACH_WIDTH(_plain, )

#if defined(__x86_64__) && defined(__GNUC__)
EACH_WIDTH(_avx2, __attribute__((target("avx2"))))
#define BEST(width) (__builtin_cpu_supports("avx2") ? mask##width##_avx2 : mask##width##_plain)
#else
#define BEST(width) mask##width##_plain
#endif

#define EXPORTED __attribute__((visibility("default")))

/* Adds `size` words of `bytes` bytes each to a vector, or subtracts them. Returns 1 if a word was
 * rejected, 0 if none was, and -1 for words of another size. */
EXPORTED int hpcfl_mask(void *vector, const void *words, size_t size, int bytes, uint32_t modulus,
                        uint32_t low, int subtract)
{
    switch (bytes) {
    case 1:
        return BEST(8)(vector, words, size, (uint8_t)modulus, (uint8_t)low, subtract);
    case 2:
        return BEST(16)(vector, words, size, (uint16_t)modulus, (uint16_t)low, subtract);
    case 4:
        return BEST(32)(vector, words, size, modulus, low, subtract);
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
enum { AES_BYTES = 16, PIECE = 1 << 14 };

/* Adds the keystreams of keys, which lie end to end, to a vector, or subtracts those of `minus`. Each
 * begins with the same counter. Returns the number of the first key from `begin` on with a rejected
 * word, or `count`, or -1 where this cannot be computed. */
EXPORTED long hpcfl_masks(const aes *f, uint8_t *vector, size_t size, int bytes, uint32_t modulus,
                          uint32_t low, const uint8_t *keys, const uint8_t *counter,
                          const uint8_t *minus, long begin, long count)
{
    static const uint8_t zeros[PIECE];
    uint32_t words[PIECE / sizeof(uint32_t)];
    size_t total = size * bytes, part;
    void *context = f->create();
    int works = context && f->init(context, f->mode, NULL, NULL, NULL), rejected = 0, written;
    long k = begin;
    for (; works && k < count; k++) {
        works = f->init(context, NULL, NULL, keys + AES_BYTES * k, counter);
        for (size_t done = 0; works && done < total; done += part) {
            part = total - done < PIECE ? total - done : PIECE;
            works = f->update(context, (uint8_t *)words, &written, zeros, (int)part);
            rejected |= hpcfl_mask(vector + done, words, part / bytes, bytes, modulus, low, minus[k]);
        }
        if (rejected)
            break;
    }
    if (context)
        f->destroy(context);
    return works && rejected >= 0 ? k : -1;
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
