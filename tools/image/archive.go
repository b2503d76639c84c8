package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// image is what an archive is made from.
type image struct {
	root   string // the folder with its files
	tag    string
	arch   string
	time   time.Time // of the image and of everything in it
	config v1.Config
}

// writeArchive writes the image as a docker-archive. The file appears under its name only when it is complete.
func writeArchive(output string, i image) error {
	tag, err := name.NewTag(i.tag)
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	files, err := i.files()
	if err != nil {
		return fmt.Errorf("pack %s: %w", i.root, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return fmt.Errorf("make the layer: %w", err)
	}
	complete, err := i.withConfig(layer)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	partial := output + ".partial"
	if err := tarball.WriteToFile(partial, tag, complete); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return os.Rename(partial, output)
}

func (i image) withConfig(layer v1.Layer) (v1.Image, error) {
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{CreatedBy: "COPY / /", Created: v1.Time{Time: i.time}},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", i.arch, v1.Time{Time: i.time}, i.config
	return mutate.ConfigFile(img, file)
}

// files returns the tar with all files of the image, in the order of their names, owned by root.
func (i image) files() ([]byte, error) {
	root, err := os.OpenRoot(i.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header, err := i.header(root, name, info)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := root.ReadFile(name)
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// header describes a file or folder by what is the same for everybody who builds: not its owner, not its time, and of
// its mode, which depends on the umask, only whether it can be executed, or is shared like /tmp. A link must lead to
// another file of the image.
func (i image) header(root *os.Root, name string, info fs.FileInfo) (*tar.Header, error) {
	header := &tar.Header{Name: name, Mode: 0o644, ModTime: i.time, Format: tar.FormatPAX}
	switch mode := info.Mode(); {
	case mode.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, name+"/", 0o755
		if mode&fs.ModeSticky != 0 {
			header.Mode = 0o1777
		}
	case mode.IsRegular():
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
		if mode&0o111 != 0 {
			header.Mode = 0o755
		}
	case mode&fs.ModeSymlink != 0:
		target, err := root.Readlink(name)
		if err != nil {
			return nil, err
		}
		if _, err := root.Stat(name); err != nil || path.IsAbs(target) {
			return nil, fmt.Errorf("link %s leads to %s, which is no file of the image", name, target)
		}
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, target, 0o777
	default:
		return nil, fmt.Errorf("%s is neither a file nor a folder", name)
	}
	return header, nil
}
