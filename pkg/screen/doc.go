// Package screen draws Views for people: a live screen on a terminal, lines where there is none.
package screen
