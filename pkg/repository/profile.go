package repository

import (
	"strings"
)

// profile is one section of an AWS credentials or config file; its keys are in lower case.
type profile map[string]string

// parseProfiles reads an AWS credentials or config file. Sections of one name are merged. "[profile x]", as config files
// write it, is x, but yields to "[x]". As in the AWS SDK, lines that mean nothing are skipped, so that an unfit file
// simply has no profiles: an indented line below a key without value is a nested setting, any other one counts as if it
// were not indented.
func parseProfiles(data []byte) map[string]profile {
	profiles, fromConfig := map[string]profile{}, map[string]profile{}
	var current profile
	nested := false // the lines below a key without value
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';' {
			continue
		}
		if trimmed[0] == '[' {
			current, nested = section(trimmed, profiles, fromConfig), false
			continue
		}
		if indented := line[0] == ' ' || line[0] == '\t'; indented && nested {
			continue
		}
		key, value, ok := property(trimmed)
		nested = ok && value == ""
		if ok && current != nil {
			current[key] = value
		}
	}
	for name, p := range fromConfig {
		if _, ok := profiles[name]; !ok {
			profiles[name] = p
		}
	}
	return profiles
}

// section returns the profile that a header opens, or nil if it is none.
func section(line string, profiles, fromConfig map[string]profile) profile {
	name, _, ok := strings.Cut(line[1:], "]")
	if !ok {
		return nil
	}
	into := profiles
	fields := strings.Fields(name)
	if len(fields) > 1 && fields[0] == "profile" {
		into, fields = fromConfig, fields[1:]
	}
	name = strings.Trim(strings.Join(fields, " "), `"'`)
	if into[name] == nil {
		into[name] = profile{}
	}
	return into[name]
}

// property splits "key = value ; comment". Quotes around the value are dropped: no key or token holds any.
func property(line string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(line, "=")
	key = strings.ToLower(strings.TrimSpace(key))
	if !ok || key == "" {
		return "", "", false
	}
	return key, unquote(cutComment(strings.TrimSpace(value), "#;")), true
}

// cutComment drops what follows one of the marks at the value's start or after a space, outside of quotes.
func cutComment(value, marks string) string {
	var quote, before byte = 0, ' '
	for i := range len(value) {
		c := value[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case i == 0 && (c == '"' || c == '\''):
			quote = c
		case strings.IndexByte(marks, c) >= 0 && (before == ' ' || before == '\t'):
			return strings.TrimSpace(value[:i])
		}
		before = c
	}
	return value
}

// unquote drops one pair of quotes around the value.
func unquote(value string) string {
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	return value
}
