package faultfs

import (
	"context"
	"path"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is an entry of the file system.
type node struct {
	fs.LoopbackNode
	volume *FS
}

func newRoot(f *FS, backing string) (*node, error) {
	var stat syscall.Stat_t
	if err := syscall.Stat(backing, &stat); err != nil {
		return nil, err
	}
	data := &fs.LoopbackRoot{Path: backing, Dev: stat.Dev}
	root := &node{LoopbackNode: fs.LoopbackNode{RootData: data}, volume: f}
	data.RootNode = root
	return root, nil
}

// WrapChild makes every entry below one of ours.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if _, ok := ops.(*node); ok {
		return ops
	}
	return &node{LoopbackNode: fs.LoopbackNode{RootData: n.RootData}, volume: n.volume}
}

// name is the path below the root, "." for the root.
func (n *node) name() string {
	if p := n.Path(n.Root()); p != "" {
		return p
	}
	return "."
}

func (n *node) call(op Op) syscall.Errno { return n.volume.call(op, n.name(), maxOffset) }

func (n *node) callChild(op Op, name string) syscall.Errno {
	return n.volume.call(op, path.Join(n.name(), name), maxOffset)
}

// maxOffset is beyond what any Fault.After lets pass: calls without an offset fail as a whole.
const maxOffset = 1<<63 - 1

// Access is asked for access(2) and chdir(2), and checks no permission.
func (n *node) Access(context.Context, uint32) syscall.Errno { return n.call(Stat) }

func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.call(Stat); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Statfs(ctx, out)
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.callChild(Stat, name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Lookup(ctx, name, out)
}

func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.call(Stat); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Getattr(ctx, f, out)
}

func (n *node) Statx(ctx context.Context, f fs.FileHandle, flags, mask uint32, out *fuse.StatxOut) syscall.Errno {
	if errno := n.call(Stat); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Statx(ctx, f, flags, mask, out)
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	name := n.name()
	if errno := n.volume.call(List, name, 0); errno != 0 {
		return nil, 0, errno
	}
	handle, fuseFlags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &listing{handle: handle.(dirHandle), volume: n.volume, name: name}, fuseFlags, 0
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.call(Open); errno != 0 {
		return nil, 0, errno
	}
	handle, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &file{LoopbackFile: handle.(*fs.LoopbackFile), node: n}, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.callChild(Create, name); errno != 0 {
		return nil, nil, 0, errno
	}
	inode, handle, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return inode, &file{LoopbackFile: handle.(*fs.LoopbackFile), node: inode.Operations().(*node)}, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.callChild(Create, name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.callChild(Create, name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.callChild(Create, name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Symlink(ctx, target, name, out)
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.callChild(Create, name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Link(ctx, target, name, out)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.callChild(Remove, name); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	if errno := n.callChild(Remove, name); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, newParent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.callChild(Remove, name); errno != 0 {
		return errno
	}
	to, ok := newParent.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return n.LoopbackNode.Rename(ctx, name, &to.LoopbackNode, newName, flags)
}

func (n *node) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	if errno := n.call(Read); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Readlink(ctx)
}

func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	op := Setattr
	if _, ok := in.GetSize(); ok {
		op = Write
	}
	switch errno := n.call(op); {
	case errno == lost:
		return n.LoopbackNode.Getattr(ctx, f, out)
	case errno != 0:
		return errno
	}
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

func (n *node) Getxattr(ctx context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	if errno := n.call(Xattr); errno != 0 {
		return 0, errno
	}
	return n.LoopbackNode.Getxattr(ctx, attr, dest)
}

func (n *node) Listxattr(ctx context.Context, dest []byte) (uint32, syscall.Errno) {
	if errno := n.call(Xattrs); errno != 0 {
		return 0, errno
	}
	return n.LoopbackNode.Listxattr(ctx, dest)
}

func (n *node) Setxattr(ctx context.Context, attr string, data []byte, flags uint32) syscall.Errno {
	if errno := n.call(Setattr); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Setxattr(ctx, attr, data, flags)
}

func (n *node) Removexattr(ctx context.Context, attr string) syscall.Errno {
	if errno := n.call(Setattr); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Removexattr(ctx, attr)
}

// file is an open file. Its embedded file would let the kernel read past us (PassthroughFd), if that were switched on.
type file struct {
	*fs.LoopbackFile
	node *node
}

func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	name := f.node.name()
	if errno := f.node.volume.call(Read, name, off); errno != 0 {
		return nil, errno
	}
	return f.LoopbackFile.Read(ctx, buf[:f.node.volume.limit(Read, name, off, len(buf))], off)
}

func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	name := f.node.name()
	switch errno := f.node.volume.call(Write, name, off); {
	case errno == lost:
		return uint32(len(data)), 0
	case errno != 0:
		return 0, errno
	}
	return f.LoopbackFile.Write(ctx, data[:f.node.volume.limit(Write, name, off, len(data))], off)
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	switch errno := f.node.volume.call(Write, f.node.name(), int64(off)); {
	case errno == lost:
		return 0
	case errno != 0:
		return errno
	}
	return f.LoopbackFile.Allocate(ctx, off, size, mode)
}

func (f *file) Flush(ctx context.Context) syscall.Errno {
	if errno := f.node.call(Sync); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Flush(ctx)
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if errno := f.node.call(Sync); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Fsync(ctx, flags)
}

// dirHandle is what the backing directory's handle can do.
type dirHandle interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
	fs.FileFsyncdirer
}

// listing is an open directory.
type listing struct {
	handle dirHandle
	volume *FS
	name   string
	at     int64 // entries listed
}

func (l *listing) Readdirent(ctx context.Context) (*fuse.DirEntry, syscall.Errno) {
	if errno := l.volume.call(List, l.name, l.at); errno != 0 {
		return nil, errno
	}
	l.at++
	return l.handle.Readdirent(ctx)
}

func (l *listing) Seekdir(ctx context.Context, off uint64) syscall.Errno {
	return l.handle.Seekdir(ctx, off)
}
func (l *listing) Releasedir(ctx context.Context, flags uint32) { l.handle.Releasedir(ctx, flags) }
func (l *listing) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return l.handle.Fsyncdir(ctx, flags)
}
