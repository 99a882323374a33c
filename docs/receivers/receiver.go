// Receive requests that Ferryman signed: verify each, and handle each once. It needs the standard library only.
//
//	WEBHOOK_SECRET=whsec_... go run receiver.go [PORT]
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	tolerance = 5 * time.Minute
	mostBytes = 1 << 20
)

var errNotGenuine = errors.New("the request is not genuine")

// verify returns the id of a genuine request. body is what came in, byte for byte: verify it before you parse it.
func verify(header http.Header, body []byte, keys [][]byte) (string, error) {
	id, sent := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > tolerance {
		return "", fmt.Errorf("%w: the timestamp is not recent", errNotGenuine)
	}
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + sent + "."))
		mac.Write(body)
		expected := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, each := range strings.Fields(header.Get("webhook-signature")) {
			if hmac.Equal([]byte(expected), []byte(each)) {
				return id, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no signature fits", errNotGenuine)
}

// keyOf returns the bytes that sign: those behind whsec_ are base64, any other text is taken as it is.
func keyOf(secret string) ([]byte, error) {
	if encoded, found := strings.CutPrefix(secret, "whsec_"); found {
		return base64.StdEncoding.DecodeString(encoded)
	}
	return []byte(secret), nil
}

// received remembers the ids of requests that took effect. In your service this is a table whose primary key is the id,
// written in the transaction of the effect: then it outlasts the process, and serves all of your replicas.
type received struct {
	mutex sync.Mutex
	ids   map[string]bool
}

// once takes the effect of a request, unless an earlier one with its id did.
func (r *received) once(id string, effect func() error) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.ids[id] {
		return nil
	}
	if err := effect(); err != nil {
		return err
	}
	r.ids[id] = true
	return nil
}

// receiver answers 204 when a request has taken effect, now or earlier: only then is it not sent again.
func receiver(keys [][]byte) http.HandlerFunc {
	seen := &received{ids: map[string]bool{}}
	return func(answer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(answer, request.Body, mostBytes))
		if err != nil {
			answer.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		id, err := verify(request.Header, body, keys)
		if err != nil {
			fmt.Println("refused:", err)
			answer.WriteHeader(http.StatusUnauthorized)
			return
		}
		err = seen.once(id, func() error {
			_, err := fmt.Println("handled", id) // your effect
			return err
		})
		if err != nil { // it comes again
			answer.WriteHeader(http.StatusInternalServerError)
			return
		}
		answer.WriteHeader(http.StatusNoContent)
	}
}

func main() {
	var keys [][]byte
	for _, secret := range strings.Fields(os.Getenv("WEBHOOK_SECRET")) { // name both while one replaces the other
		key, err := keyOf(secret)
		if err != nil {
			log.Fatal("WEBHOOK_SECRET: the text behind whsec_ is not valid base64")
		}
		if len(key) == 0 { // anybody could sign with it
			keys = nil
			break
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		log.Fatal("WEBHOOK_SECRET is not set, or empty: set it to the secret of the sender, such as whsec_...")
	}
	port := "8000"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Handler: receiver(keys), ReadTimeout: 15 * time.Second}
	log.Fatal(server.Serve(listener))
}
