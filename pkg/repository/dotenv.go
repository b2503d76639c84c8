package repository

import (
	"fmt"
	"strings"
)

// parseDotenv reads the credentials file of Velero's Azure plugin: lines of KEY=VALUE or KEY: VALUE, with or without
// "export" and quotes. Escapes count in double quotes only; nothing is expanded. The error names the line's number, never
// its content.
func parseDotenv(data []byte) (map[string]string, error) {
	values := map[string]string{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		line = strings.TrimSpace(strings.TrimPrefix(line, "export "))
		i := strings.IndexAny(line, "=:")
		if i <= 0 {
			return nil, fmt.Errorf("line %d is not KEY=VALUE", number)
		}
		values[strings.TrimSpace(line[:i])] = dotenvValue(strings.TrimSpace(line[i+1:]))
	}
	return values, nil
}

func dotenvValue(raw string) string {
	value := cutComment(raw, "#")
	unquoted := unquote(value)
	if unquoted == value || value[0] == '\'' {
		return unquoted
	}
	return strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\\`, `\`, `\"`, `"`).Replace(unquoted)
}
