package monitoring

import (
	"testing"
)

// dashboard is what is looked at of a Grafana dashboard, in the classic schema that Grafana 10 to 13 take.
type dashboard struct {
	UID           string  `json:"uid"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  datasource `json:"datasource"`
	GridPos     grid       `json:"gridPos"`
	Targets     []target   `json:"targets"`
}

type grid struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

func (g grid) overlaps(o grid) bool {
	return g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type target struct {
	RefID      string     `json:"refId"`
	Expr       string     `json:"expr"`
	Datasource datasource `json:"datasource"`
}

type variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

// fromVariable is the data source that the reader has chosen.
var fromVariable = datasource{"prometheus", "${datasource}"}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	decode(t, inRepository(t, "deploy/monitoring/dashboard.json"), &d)
	return d
}

func TestDashboardIsWellFormed(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID != "plimsoll" || d.SchemaVersion < 39 {
		t.Errorf("uid %q, schemaVersion %d", d.UID, d.SchemaVersion)
	}
	ids := map[int]string{}
	for i, p := range d.Panels {
		if other, taken := ids[p.ID]; taken || p.ID == 0 {
			t.Errorf("panels %q and %q both have id %d", other, p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("panel %q is at %+v, outside of the 24 columns", p.Title, p.GridPos)
		}
		for _, o := range d.Panels[:i] {
			if p.GridPos.overlaps(o.GridPos) {
				t.Errorf("panels %q and %q overlap", o.Title, p.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource != fromVariable {
			t.Errorf("panel %q has no description, no query, or data source %+v", p.Title, p.Datasource)
		}
		checkTargets(t, p)
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" || variables["node"] != "query" || variables["namespace"] != "query" {
		t.Errorf("variables %v", variables)
	}
}

func checkTargets(t *testing.T, p panel) {
	t.Helper()
	seen := map[string]bool{}
	for _, q := range p.Targets {
		if q.Expr == "" || q.Datasource != fromVariable || seen[q.RefID] {
			t.Errorf("panel %q: query %q is empty, a second one of that name, or has data source %+v", p.Title, q.RefID, q.Datasource)
		}
		seen[q.RefID] = true
	}
}
