package resticrepo

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Lock is a lock of a repository, as restic writes it.
type Lock struct {
	Time      time.Time `json:"time"`
	Exclusive bool      `json:"exclusive"`
	Hostname  string    `json:"hostname"`
	Username  string    `json:"username"`
	PID       int       `json:"pid"`
}

// Plant writes a lock into a repository of this package: one of another time or host, which no process of this host can leave. It asks
// the restic program for the repository's key.
func (l Lock) Plant(tb testing.TB, program, dir string) (path string) {
	tb.Helper()
	c := exec.CommandContext(tb.Context(), program, "-r", dir, "cat", "masterkey", "--no-cache", "--no-lock")
	c.Env = []string{"RESTIC_PASSWORD=" + Password, "HOME=" + tb.TempDir()}
	output, err := c.Output()
	if err != nil {
		tb.Fatalf("ask for the key: %v", err)
	}
	name, sealed, err := l.Seal(output)
	if err != nil {
		tb.Fatal(err)
	}
	path = filepath.Join(dir, "locks", name)
	if err := os.WriteFile(path, sealed, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Seal returns a lock as it is stored, and its name, for a repository whose key `restic cat masterkey` has printed.
func (l Lock) Seal(masterkey []byte) (name string, sealed []byte, err error) {
	var k masterKey
	if err := json.Unmarshal(masterkey, &k); err != nil {
		return "", nil, fmt.Errorf("read the key: %w", err)
	}
	plain, err := json.Marshal(l)
	if err != nil {
		return "", nil, err
	}
	if sealed, err = k.seal(plain); err != nil {
		return "", nil, err
	}
	id := sha256.Sum256(sealed)
	return hex.EncodeToString(id[:]), sealed, nil
}

// masterKey is the key of everything in a repository but the key files.
type masterKey struct {
	MAC struct {
		K []byte `json:"k"`
		R []byte `json:"r"`
	} `json:"mac"`
	Encrypt []byte `json:"encrypt"`
}

// seal encrypts by AES-256 in counter mode and appends the Poly1305-AES authenticator, see "Keys, Encryption and MAC" in restic's design document
// (https://restic.readthedocs.io/en/stable/100_references.html).
func (k *masterKey) seal(plain []byte) ([]byte, error) {
	nonce := make([]byte, aes.BlockSize)
	_, _ = rand.Read(nonce)
	data, err := aes.NewCipher(k.Encrypt)
	if err != nil {
		return nil, err
	}
	text := make([]byte, len(plain))
	cipher.NewCTR(data, nonce).XORKeyStream(text, plain)
	mac, err := aes.NewCipher(k.MAC.K)
	if err != nil {
		return nil, err
	}
	s := make([]byte, aes.BlockSize)
	mac.Encrypt(s, nonce)
	return bytes.Join([][]byte{nonce, text, poly1305(text, k.MAC.R, s)}, nil), nil
}

// poly1305 is RFC 8439, section 2.5, in the slow way.
func poly1305(text, r, s []byte) []byte {
	little := func(b []byte) *big.Int {
		n := new(big.Int)
		for i := range b {
			n.Lsh(n, 8).Or(n, big.NewInt(int64(b[len(b)-1-i])))
		}
		return n
	}
	clamped := bytes.Clone(r)
	for at, mask := range []uint32{0x0fffffff, 0x0ffffffc, 0x0ffffffc, 0x0ffffffc} {
		binary.LittleEndian.PutUint32(clamped[4*at:], binary.LittleEndian.Uint32(clamped[4*at:])&mask)
	}
	prime := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 130), big.NewInt(5))
	sum := new(big.Int)
	for len(text) > 0 {
		n := min(len(text), 16)
		sum.Add(sum, little(append(bytes.Clone(text[:n]), 1)))
		sum.Mul(sum, little(clamped)).Mod(sum, prime)
		text = text[n:]
	}
	sum.Add(sum, little(s))
	tag := make([]byte, 16)
	for i := range tag {
		tag[i] = byte(new(big.Int).Rsh(sum, uint(8*i)).Uint64())
	}
	return tag
}
